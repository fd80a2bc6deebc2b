// The batches that one look-up read, by several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "store/spare_batches.h"
#include "threads/mutex.h"

namespace embstore {

class LookUpBatches {
 public:
  // The rows of `batch` belong to neighbouring ids of the look-up; may be null.
  void add(BatchPtr batch) {
    if (batch == nullptr) return;
    const MutexLock lock(mutex_);
    batches_.push_back(std::move(batch));
  }
  // Returns the batches in the order of the ids that were served: a row keeps the time of the access that is
  // counted last.
  std::vector<BatchPtr> take() {
    const auto time = [](const BatchPtr& batch) {
      return batch->first_stamp + (batch->last_positions.empty() ? 0 : batch->last_positions.front());
    };
    const MutexLock lock(mutex_);
    std::ranges::sort(batches_, {}, time);
    return std::move(batches_);
  }

 private:
  Mutex mutex_;
  std::vector<BatchPtr> batches_ GUARDED_BY(mutex_);
};

}  // namespace embstore
