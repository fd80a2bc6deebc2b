#include "tiers/pool/restoring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "access/phase.h"
#include "access/safe_point.h"
#include "errors/error.h"
#include "platform/prefetch.h"
#include "threads/mutex.h"

namespace embstore::pool {
namespace {

// A thread's next piece of the bitmap: so much that visitors get long batches.
constexpr size_t kWordsAtOnce = 64;
constexpr size_t kRecordsFetchedAhead = 16;

class Visitors {
 public:
  Visitors(const DurableFile& rows, const RecordShape& shape, const SlotBits& slots, uint64_t number,
           TierMeter& meter, const VisitHeaders& visit)
      : rows_(rows), shape_(shape), slots_(slots), number_(number), meter_(meter), visit_(visit) {}

  // Until nothing is left, or one of the threads failed.
  void work() {
    try {
      std::vector<Slot> slots;
      std::vector<RowHeader> headers;
      while (!failed_.load(std::memory_order_relaxed)) {
        const size_t first = next_word_.fetch_add(kWordsAtOnce, std::memory_order_relaxed);
        if (first >= slots_.words()) return;
        slots.clear();
        for (size_t i = first; i < std::min(first + kWordsAtOnce, slots_.words()); ++i) {
          for_each_slot(slots_.word(i), i * 64, [&](Slot slot) { slots.push_back(slot); });
        }
        if (slots.empty()) continue;
        read(slots, headers);
        visit_(headers, slots);
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void fail(std::exception_ptr error) {
    const MutexLock lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
    failed_.store(true, std::memory_order_relaxed);
  }
  void rethrow() {
    const MutexLock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void read(std::span<const Slot> slots, std::vector<RowHeader>& headers) const {
    headers.clear();
    Phase phase(meter_);
    phase.count(Access::kLoad, slots.size(), sizeof(RecordHeader));
    for (size_t i = 0; i < slots.size(); ++i) {
      if (i + kRecordsFetchedAhead < slots.size()) {
        prefetch_line(rows_.data() + shape_.offset(slots[i + kRecordsFetchedAhead]));
      }
      RecordHeader record;
      std::memcpy(&record, rows_.data() + shape_.offset(slots[i]), sizeof record);
      const char* const fault = fault_of(record, slots[i]);
      if (fault != nullptr) throw Error(ErrorKind::kStorage, damage_of(rows_, shape_, slots[i], fault));
      headers.push_back(record.row());
    }
  }
  const char* fault_of(const RecordHeader& record, Slot slot) const {
    if (!record.is_whole()) return "its header's checksum is wrong";
    if (record.slot != slot) return "it's the record of another slot";
    if (record.epoch > number_) return "it's younger than the checkpoint that is to have it";
    return nullptr;
  }

  const DurableFile& rows_;
  const RecordShape& shape_;
  const SlotBits& slots_;
  const uint64_t number_;
  TierMeter& meter_;
  const VisitHeaders& visit_;
  std::atomic<size_t> next_word_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace

std::string damage_of(const DurableFile& rows, const RecordShape& shape, Slot slot, const std::string& what) {
  return rows.path() + ": the record in slot " + std::to_string(slot) + " (at byte " +
         std::to_string(shape.offset(slot)) + ") is damaged: " + what;
}

void visit_records(const DurableFile& rows, const RecordShape& shape, const SlotBits& slots, uint64_t number,
                   int threads, TierMeter& meter, const VisitHeaders& visit) {
  Visitors visitors(rows, shape, slots, number, meter, visit);
  {
    std::vector<std::jthread> others;
    try {
      for (int i = 1; i < threads; ++i)
        others.emplace_back([&visitors] {
          visitors.work();
          safe_point();
        });
    } catch (...) {
      visitors.fail(std::current_exception());
    }
    visitors.work();
  }
  visitors.rethrow();
}

}  // namespace embstore::pool
