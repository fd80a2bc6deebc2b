// What serving look-ups read, kept until a thread has time to count it and to move rows up: a look-up pays
// for one sequential copy of its ids instead of a cache miss a row.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "memory/page_vector.h"
#include "row/row_layout.h"
#include "store/staged_rows.h"
#include "threads/mutex.h"

namespace embstore {

// One batch of ids, with where they were seen.
struct ServedBatch {
  explicit ServedBatch(const RowLayout& layout) : lower(layout) {}

  void clear() {
    first_stamp = 0;
    ids.clear();
    refs.clear();
    lower.clear();
  }
  size_t size_bytes() const { return ids.size() * (sizeof(ids[0]) + sizeof(refs[0])) + lower.size_bytes(); }

  size_t memory_bytes() const {
    return ids.capacity() * sizeof(ids[0]) + refs.capacity() * sizeof(refs[0]) + lower.memory_bytes();
  }

  uint64_t first_stamp = 0;  // that of ids[0]; the others' follow
  PageVector<int64_t> ids;
  PageVector<RowRef> refs;  // of the ids' rows; empty for those that had none
  StagedRows lower;         // the rows that were in lower tiers; a tag is a position in the batch
};

class AccessLog {
 public:
  explicit AccessLog(const RowLayout& layout) : layout_(layout) {}

  // An empty batch, with the memory of an earlier one where there is one.
  ServedBatch take_spare() {
    MutexLock lock(mutex_);
    if (spare_.empty()) return ServedBatch(layout_);
    ServedBatch batch = std::move(spare_.back());
    spare_.pop_back();
    spare_bytes_ -= batch.memory_bytes();
    return batch;
  }
  void recycle(ServedBatch&& batch) {
    constexpr size_t kMostSpare = 4;
    constexpr size_t kMostSpareBytes = size_t{16}
                                       << 20;  // what a larger batch needed goes back to the system
    batch.clear();
    const size_t bytes = batch.memory_bytes();
    MutexLock lock(mutex_);
    if (spare_.size() == kMostSpare || spare_bytes_ + bytes > kMostSpareBytes) return;
    spare_bytes_ += bytes;
    spare_.push_back(std::move(batch));
  }

  void append(ServedBatch&& batch) {
    const size_t bytes = batch.size_bytes();
    MutexLock lock(mutex_);
    waiting_bytes_ += bytes;
    waiting_.push_back(std::move(batch));
  }
  // The oldest batches: at least one if any waits, and no more than it takes to come to so many bytes.
  std::vector<ServedBatch> take_oldest(size_t bytes) {
    std::vector<ServedBatch> batches;
    MutexLock lock(mutex_);
    for (size_t taken = 0; !waiting_.empty() && (batches.empty() || taken < bytes); waiting_.pop_front()) {
      taken += waiting_.front().size_bytes();
      waiting_bytes_ -= waiting_.front().size_bytes();
      batches.push_back(std::move(waiting_.front()));
    }
    return batches;
  }
  size_t waiting_bytes() const {
    MutexLock lock(mutex_);
    return waiting_bytes_;
  }
  bool empty() const {
    MutexLock lock(mutex_);
    return waiting_.empty();
  }

 private:
  const RowLayout layout_;
  mutable Mutex mutex_;
  std::deque<ServedBatch> waiting_ GUARDED_BY(mutex_);  // the oldest first
  std::vector<ServedBatch> spare_ GUARDED_BY(mutex_);
  size_t spare_bytes_ GUARDED_BY(mutex_) = 0;
  size_t waiting_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
