// The one room that knows where rows are: the index, the tiers, and the counts of both. Who wants a row to come,
// go, or be elsewhere changes it by a Transaction (transaction.h), and keeps no ledger of its own.
//
// Locks, in the order in which they are taken:
// - what the table holds: its apply gate, and the mover's right to move (movement/mover.h).
// - a shard's mutex (index/index.h): guards its entries and their rows against other writers. Readers take no
//   lock; they rely on the buckets' guards. At most one shard's mutex is held at a time.
// - a tier's own, innermost.
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
  // Guards of these keep what readers may look at.
  Epochs& epochs() const { return epochs_; }
  const Index& index() const { return index_; }
  IndexShard& shard(int number) const { return index_.shard(number); }
  IndexShard& shard_of_key(int64_t key) const { return index_.shard(embstore::shard_of_key(key)); }

  TierStack& tiers() { return tiers_; }
  const TierStack& tiers() const { return tiers_; }

  // Null where there's no durable pool below tiers of memory.
  InclusiveCache* cache() const { return cache_.get(); }

  uint64_t row_count() const;
  uint64_t rows(size_t t) const { return counts_.rows(t); }
  uint64_t excess_rows(size_t t) const {
    return rows(t) > tiers_.capacity_rows(t) ? rows(t) - tiers_.capacity_rows(t) : 0;
  }
  // Whether any tier has more rows than it may hold that could go down.
  bool has_excess() const;
  // New rows that the table may still get.
  uint64_t room() const { return counts_.room(); }
  uint64_t index_bytes() const;

  // A batch in which rows may be found from now on. This outlives it.
  BatchPtr start_batch() const {
    BatchPtr batch = spare_.take();
    batch->start(tiers_);
    return batch;
  }

  // Whether a save is under way. A save begins while moves are held off.
  bool is_being_saved() const { return is_being_saved_.load(std::memory_order_relaxed); }
  void set_being_saved(bool is) { is_being_saved_.store(is, std::memory_order_relaxed); }

  // Fills `rows` with the rows of `keys`, in order; with keys that have no row it never ends. REQUIRES: rows change
  // places only by a tier's own compaction.
  void read_settled(std::span<const int64_t> keys, RowBatch& rows) const;

  // Removes the rows of `keys`, as far as there are. Throws what write_wanted_on_device() throws; no row is removed then.
  // REQUIRES: rows change places only by a tier's own compaction.
  void remove(std::span<const int64_t> keys);

 private:
  friend class Transaction;  // whose ledgers these are

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
