// What serving look-ups read, kept until a thread has time to count it and to move rows up: a look-up pays
// for one sequential copy of its ids instead of a cache miss a row.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

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

  uint64_t first_stamp = 0;  // that of ids[0]; the others' follow
  std::vector<int64_t> ids;
  std::vector<RowRef> refs;  // of the ids' rows; empty for those that had none
  StagedRows lower;          // the rows that were in lower tiers; a tag is a position in the batch
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
    return batch;
  }
  void recycle(ServedBatch&& batch) {
    constexpr size_t kMostSpare = 4;
    batch.clear();
    MutexLock lock(mutex_);
    if (spare_.size() < kMostSpare) spare_.push_back(std::move(batch));
  }

  void append(ServedBatch&& batch) {
    const size_t bytes = batch.size_bytes();
    MutexLock lock(mutex_);
    waiting_bytes_ += bytes;
    waiting_.push_back(std::move(batch));
  }
  std::vector<ServedBatch> take_waiting() {
    MutexLock lock(mutex_);
    waiting_bytes_ = 0;
    return std::exchange(waiting_, {});
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
  std::vector<ServedBatch> waiting_ GUARDED_BY(mutex_);
  std::vector<ServedBatch> spare_ GUARDED_BY(mutex_);
  size_t waiting_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
