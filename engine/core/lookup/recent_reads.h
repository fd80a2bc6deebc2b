// Rows of lower tiers that look-ups in training read, kept for the update that follows: it needs them again.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "movement/access_log.h"
#include "threads/mutex.h"

namespace embstore {

class RecentReads {
 public:
  // False where what was kept last went unused: whole rows needn't be read then, nor kept, until an update comes.
  bool updates_follow() const { return updates_follow_.load(std::memory_order_relaxed); }
  // Keeps what a look-up read; returns what goes for its sake, or is too much to be kept. Of the earlier ones only
  // so much stays as a processor's cache holds: look-ups that no update follows work in the same memory again then.
  std::vector<ServedBatch> keep(ServedBatch&& batch) {
    std::vector<ServedBatch> gone;
    MutexLock lock(mutex_);
    bytes_ += batch.size_bytes();
    batches_.push_back(std::move(batch));
    size_t oldest = 0;
    while (oldest < batches_.size() &&
           bytes_ > (oldest + 1 == batches_.size() ? kMostBytes : kMostBytesOfSeveral)) {
      bytes_ -= batches_[oldest].size_bytes();
      gone.push_back(std::move(batches_[oldest++]));
    }
    batches_.erase(batches_.begin(), batches_.begin() + static_cast<ptrdiff_t>(oldest));
    if (oldest != 0) updates_follow_.store(false, std::memory_order_relaxed);
    return gone;
  }
  // All of them, the newest last.
  std::vector<ServedBatch> take() {
    MutexLock lock(mutex_);
    bytes_ = 0;
    updates_follow_.store(true, std::memory_order_relaxed);
    return std::exchange(batches_, {});
  }

 private:
  static constexpr size_t kMostBytes = size_t{8} << 20;
  static constexpr size_t kMostBytesOfSeveral = size_t{1} << 20;

  std::atomic<bool> updates_follow_{true};
  Mutex mutex_;
  std::vector<ServedBatch> batches_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
