// The one place that knows where rows are: the index, the tiers, and the counts of both. To insert, remove or
// move a row, a caller uses a Transaction (transaction.h), and keeps no count of its own.
//
// Locks, in the order in which they are taken:
// - the table's locks: its apply gate, and the mover's right to move (movement/mover.h).
// - a shard's mutex (index/index_shard.h): guards its entries and their rows against other writers. Readers take no
//   lock; they rely on the buckets' guards. At most one shard's mutex is held at a time.
// - a tier's own locks, innermost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "row/row_batch.h"
#include "row/row_layout.h"
#include "store/inclusive_cache.h"
#include "store/index/index.h"
#include "store/index/index_reader.h"
#include "store/row_counts.h"
#include "store/spare_batches.h"
#include "store/tier_stack.h"
#include "threads/epochs.h"

namespace embstore {

class Transaction;

class RowStore {
 public:
  // `epochs` outlives this.
  RowStore(MadeTiers tiers, const RowLayout& layout, Epochs& epochs);

  const RowLayout& layout() const { return layout_; }
  // Guards of these epochs keep alive what readers may look at.
  Epochs& epochs() const { return epochs_; }
  const Index& index() const { return index_; }
  IndexShard& shard(int number) const { return index_.shard(number); }
  IndexShard& shard_of_key(int64_t key) const { return index_.shard(embstore::shard_of_key(key)); }

  TierStack& tiers() { return tiers_; }
  const TierStack& tiers() const { return tiers_; }

  // Null if there is no durable pool below memory tiers.
  InclusiveCache* cache() const { return cache_.get(); }

  uint64_t row_count() const;
  uint64_t rows(size_t t) const { return counts_.rows(t); }
  uint64_t excess_rows(size_t t) const {
    return rows(t) > tiers_.capacity_rows(t) ? rows(t) - tiers_.capacity_rows(t) : 0;
  }
  // True if any tier but the last has more rows than its capacity.
  bool has_excess() const;
  // The number of new rows that the table may still get.
  uint64_t room() const { return counts_.room(); }
  uint64_t index_bytes() const;

  // Returns a batch that is ready for rows to be found. This outlives the batch.
  BatchPtr start_batch() const {
    BatchPtr batch = spare_.take();
    batch->start(tiers_);
    return batch;
  }

  // True if a save is under way. A save begins only while moves are held off.
  bool is_being_saved() const { return is_being_saved_.load(std::memory_order_relaxed); }
  void set_being_saved(bool is) { is_being_saved_.store(is, std::memory_order_relaxed); }

  // Fills `rows` with the rows of `keys`, in order. REQUIRES: every key has a row (otherwise it never ends);
  // rows change places only by a tier's own compaction.
  void read_settled(std::span<const int64_t> keys, RowBatch& rows) const;

  // Removes the rows of those `keys` that have one. Throws what write_wanted_on_device() throws, and then
  // removes no row. REQUIRES: rows change places only by a tier's own compaction.
  void remove(std::span<const int64_t> keys);

 private:
  friend class Transaction;  // it settles these counts

  const RowLayout layout_;
  Epochs& epochs_;
  Index index_;
  TierStack tiers_;
  const std::unique_ptr<InclusiveCache> cache_;
  RowCounts counts_;
  mutable SpareBatches spare_;
  std::atomic<bool> is_being_saved_{false};
};

}  // namespace embstore
