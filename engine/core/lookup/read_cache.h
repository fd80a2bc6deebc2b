// Rows of lower tiers that look-ups in training read, kept for the update that follows, which needs them
// again.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/page_vector.h"
#include "row/key_hash.h"
#include "store/spare_batches.h"
#include "threads/mutex.h"

namespace embstore {

class ReadCache {
 public:
  // Returns false if what was kept last went unused: then look-ups needn't read or keep whole rows until an
  // update comes.
  bool updates_follow() const { return updates_follow_.load(std::memory_order_relaxed); }
  // Keeps what a look-up read, in one batch or several, unless it is too large. Of earlier look-ups it keeps
  // only as much as fits in a processor's cache: look-ups that no update follows then reuse the same memory.
  void keep(std::vector<BatchPtr> batches);
  // Takes all batches, the newest last.
  std::vector<BatchPtr> take();

 private:
  static constexpr size_t kMaxBytes = size_t{8} << 20;
  static constexpr size_t kMaxBytesOfSeveral = size_t{1} << 20;

  struct KeptLookUp {
    std::vector<BatchPtr> batches;
    size_t bytes = 0;
  };

  std::atomic<bool> updates_follow_{true};
  Mutex mutex_;
  std::vector<KeptLookUp> look_ups_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

// The reads that an update has taken, by key, for all threads that share the update. Batches that it didn't
// use go back at the end: the updates of other threads will want what their look-ups read.
class UpdateReads {
 public:
  explicit UpdateReads(ReadCache& reads) : reads_(reads) {}
  ~UpdateReads();
  UpdateReads(const UpdateReads&) = delete;
  UpdateReads& operator=(const UpdateReads&) = delete;

  // Takes what is kept, unless it was called before.
  void take();
  // Returns the key's row, which is at `now`, as it was read last; empty if it wasn't read, or has changed
  // since. REQUIRES: take() was called.
  RowInFlight find(KeyHash hash, int64_t key, RowRef now, const TierStack& tiers);

 private:
  struct Entry {
    uint32_t batch = 0;  // the batch's number, plus one; 0: the entry is empty
    uint32_t row = 0;
  };
  // Returns the key's entry, or the empty entry that it would get. REQUIRES: there are entries.
  Entry& entry(KeyHash hash, int64_t key);

  ReadCache& reads_;
  Mutex mutex_;
  bool has_taken_ GUARDED_BY(mutex_) = false;
  // These don't change once has_taken_ is true.
  std::vector<BatchPtr> batches_;
  std::vector<std::atomic<bool>> is_used_;  // by the batch's number
  PageVector<Entry> table_;                 // open addressing
};

}  // namespace embstore
