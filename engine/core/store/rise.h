// Rows of one shard that come up from lower tiers to a tier of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "access/phase.h"
#include "store/batch_in_flight.h"
#include "store/transaction.h"

namespace embstore {

class Rise {
 public:
  // To tier `to`, which is of memory. REQUIRES: `claim` is of its slots, and claim.count() >= most_rows, for rows that come up and
  // new ones together; `phase` is at all tiers of memory. Rows from below a pool get their places in it from `places`; null: from
  // the pool.
  Rise(RowStore& store, size_t to, SlotClaim& claim, size_t most_rows, Phase& phase,
       PoolClaim* places = nullptr);

  enum class Outcome {
    kUp,
    kToRead,   // it must be read first: it wasn't, or isn't what was read any more
    kDamaged,  // its medium doesn't give it back
    kNoRoom,   // the pool above it has no place that it could own
  };
  // Brings up the row of `entry`, which `copy` has as it was read before. A row in memory is read where it is. `served`: the
  // accesses for which it comes, which are counted; nothing where it comes for an update. REQUIRES: the row is below the tier.
  Outcome bring_up(IndexShard& shard, const IndexEntry& entry, int64_t key, RowInFlight copy,
                   const std::optional<ServedAccesses>& served) REQUIRES(shard.mutex);
  // Has what bring_up() will copy fetched, of a row that was at `at`.
  void fetch(RowRef at, RowInFlight copy) const;

  // The claimed slots, for new rows too.
  MemoryTierSlots& slots() { return slots_; }
  // Those that came up from a lower level.
  uint64_t promoted_rows() const { return promoted_; }

 private:
  RowStore& store_;
  const uint32_t to_;
  MemoryTier& tier_;
  Phase& phase_;
  PoolClaim* const places_;
  MemoryTierSlots slots_;
  Transaction moves_;
  uint64_t promoted_ = 0;
  std::vector<float> floats_;  // of one row
};

}  // namespace embstore
