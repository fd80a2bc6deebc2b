#include "tiers/ssd_hash/restoring.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "access/safe_point.h"
#include "errors/error.h"
#include "threads/mutex.h"
#include "tiers/ssd_hash/record_scan.h"

namespace embstore::ssd_hash {
namespace {

constexpr size_t kScanBytes = 1 << 20;

// A thread's next piece: records of one file that are read together.
struct Piece {
  const FileSnapshot* part;
  uint32_t first;
  uint32_t last;
};

class Visitors {
 public:
  Visitors(const Snapshot& snapshot, const LogShape& shape, const CheckpointFollower::Restored& visit)
      : shape_(shape), visit_(visit) {
    const auto records_at_once = static_cast<uint32_t>(std::max<size_t>(1, kScanBytes / shape.record.bytes));
    for (const FileSnapshot& part : snapshot.files) {
      for (uint32_t first = 0; first < part.records; first += records_at_once) {
        pieces_.push_back({&part, first, first + std::min(records_at_once, part.records - first)});
      }
    }
  }

  // Until nothing is left, or one of the threads failed.
  void work() {
    try {
      std::optional<RecordScan> scan;
      const FileSnapshot* scanned = nullptr;
      std::vector<RowHeader> headers;
      std::vector<Slot> slots;
      while (!failed_.load(std::memory_order_relaxed)) {
        const size_t next = next_.fetch_add(1, std::memory_order_relaxed);
        if (next >= pieces_.size()) return;
        const Piece& piece = pieces_[next];
        if (scanned != piece.part) {
          scan.emplace(*piece.part->file, shape_, kScanBytes);
          scanned = piece.part;
        }
        headers.clear();
        slots.clear();
        read(piece, *scan, headers, slots);
        if (!slots.empty()) visit_(headers, slots);
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
  void read(const Piece& piece, RecordScan& scan, std::vector<RowHeader>& headers,
            std::vector<Slot>& slots) const {
    const LogFile& file = *piece.part->file;
    const RecordBits& rows = *piece.part->rows;
    uint32_t first = piece.first;
    uint32_t last = piece.last;
    while (first < last && !has_record(rows, first)) ++first;
    while (last > first && !has_record(rows, last - 1)) --last;
    scan.visit(first, last, [&](const ScannedRecord& record) {
      if (!has_record(rows, record.number)) return;
      check_record(file, record);
      headers.push_back(header_of(record.bytes).row());
      slots.push_back(shape_.slot_of(file, record.number));
    });
  }
  void check_record(const LogFile& file, const ScannedRecord& record) const {
    std::string fault;
    if (!record.failure.empty()) {
      fault = "can't be read: " + record.failure;
    } else if (record.available < shape_.record.bytes) {
      fault = "is cut off: the file was truncated";
    } else if (!is_whole(record.bytes, shape_.record)) {
      fault = "is damaged: its checksum is wrong";
    } else if (header_of(record.bytes).kind != kRow) {
      fault = "is damaged: it's no row";
    } else {
      return;
    }
    throw Error(ErrorKind::kStorage, shape_.name_of(file, record.number) + " " + fault);
  }

  const LogShape& shape_;
  const CheckpointFollower::Restored& visit_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace

void visit_rows(const Snapshot& snapshot, const LogShape& shape, int threads,
                const CheckpointFollower::Restored& visit) {
  Visitors visitors(snapshot, shape, visit);
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

}  // namespace embstore::ssd_hash
