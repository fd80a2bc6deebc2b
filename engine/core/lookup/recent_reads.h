// Rows of lower tiers that look-ups in training read, kept for the update that follows: it needs them again.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/page_vector.h"
#include "row/key_hash.h"
#include "store/spare_batches.h"
#include "threads/mutex.h"

namespace embstore {

class RecentReads {
 public:
  // False where what was kept last went unused: whole rows needn't be read then, nor kept, until an update comes.
  bool updates_follow() const { return updates_follow_.load(std::memory_order_relaxed); }
  // Keeps what a look-up read, in one batch or in several, unless it's too much. Of the earlier look-ups only so much stays as a
  // processor's cache holds: those that no update follows work in the same memory again then.
  void keep(std::vector<BatchPtr> batches);
  // All batches, the newest last.
  std::vector<BatchPtr> take();

 private:
  static constexpr size_t kMostBytes = size_t{8} << 20;
  static constexpr size_t kMostBytesOfSeveral = size_t{1} << 20;

  struct LookedUp {
    std::vector<BatchPtr> batches;
    size_t bytes = 0;
  };

  std::atomic<bool> updates_follow_{true};
  Mutex mutex_;
  std::vector<LookedUp> look_ups_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

// What an update has taken of them, by key: for all threads that share it. What it had no use for goes back in the end: what other
// threads' look-ups read, their updates will want.
class TakenReads {
 public:
  explicit TakenReads(RecentReads& reads) : reads_(reads) {}
  ~TakenReads();
  TakenReads(const TakenReads&) = delete;
  TakenReads& operator=(const TakenReads&) = delete;

  // Takes what is kept, unless it has.
  void take();
  // The key's row, which is at `now`, as it was read last; empty where it wasn't read, or isn't what was read any more.
  // REQUIRES: take() was called.
  RowInFlight find(KeyHash hash, int64_t key, RowRef now, const TierStack& tiers);

 private:
  struct Entry {
    uint32_t batch = 0;  // its number, plus one; 0: the entry is empty
    uint32_t row = 0;
  };
  // The key's entry, or the empty one that it would get. REQUIRES: there are entries.
  Entry& entry(KeyHash hash, int64_t key);

  RecentReads& reads_;
  Mutex mutex_;
  bool has_taken_ GUARDED_BY(mutex_) = false;
  // What follows stays as it is when that is true.
  std::vector<BatchPtr> batches_;
  std::vector<std::atomic<bool>> is_of_use_;  // by number of the batch
  PageVector<Entry> table_;                   // open addressing
};

}  // namespace embstore
