// The order of a table's batches in training: which apply trains a prefetched batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "threads/mutex.h"

namespace embstore {

// A batch's turn is over when its apply has begun. Turns are numbered in the order of applies. Thread-safe.
class TrainingTurns {
 public:
  // Notes that a batch was looked up to be trained.
  void note_looked_up() {
    if (!is_looked_up_.load(std::memory_order_relaxed)) is_looked_up_.store(true, std::memory_order_relaxed);
  }
  void note_apply_began() {
    is_looked_up_.store(false, std::memory_order_relaxed);
    over_.fetch_add(1, std::memory_order_relaxed);
  }

  // Returns the turn of the next batch to be prefetched: after those prefetched before, and after the one
  // that was looked up and isn't trained yet.
  uint64_t next() {
    const MutexLock lock(mutex_);
    const uint64_t soonest = last_over() + 1;
    last_ = std::max(last_ + 1, soonest + (is_looked_up_.load(std::memory_order_relaxed) ? 1 : 0));
    return last_;
  }
  // Tells that the batches prefetched so far won't come.
  void skip_all() {
    const MutexLock lock(mutex_);
    uint64_t over = last_over();
    while (over < last_ && !over_.compare_exchange_weak(over, last_, std::memory_order_relaxed)) {
    }
  }
  uint64_t last_over() const { return over_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_looked_up_{false};  // since the last apply began
  std::atomic<uint64_t> over_{0};
  Mutex mutex_;
  uint64_t last_ GUARDED_BY(mutex_) = 0;  // the last one that next() returned
};

}  // namespace embstore
