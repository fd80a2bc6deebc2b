// A log of what serving look-ups read, kept until a thread has time to count the accesses and to move rows
// up: a look-up pays for one sequential copy of its ids instead of a cache miss per row.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "store/spare_batches.h"
#include "threads/mutex.h"

namespace embstore {

class AccessLog {
 public:
  void append(BatchPtr batch) {
    const size_t bytes = batch->size_bytes();
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(batch));
    waiting_bytes_ += bytes;
  }
  // Takes the oldest batches: at least one if any waits, and no more than it takes to reach `bytes`.
  std::vector<BatchPtr> take_oldest(size_t bytes) {
    return take_oldest(bytes, [](const BatchInFlight&) { return true; });
  }
  // The same, but stops at the first batch that is_wanted() refuses.
  template <class IsWanted>
  std::vector<BatchPtr> take_oldest(size_t bytes, IsWanted is_wanted) {
    std::vector<BatchPtr> batches;
    MutexLock lock(mutex_);
    for (size_t taken = 0; !waiting_.empty() && (batches.empty() || taken < bytes); waiting_.pop_front()) {
      if (!is_wanted(*waiting_.front())) break;
      batches.push_back(std::move(waiting_.front()));
      const size_t batch_bytes = batches.back()->size_bytes();
      taken += batch_bytes;
      waiting_bytes_ -= batch_bytes;
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
  mutable Mutex mutex_;
  std::deque<BatchPtr> waiting_ GUARDED_BY(mutex_);  // the oldest first
  size_t waiting_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
