// Brings rows of one shard up from lower tiers to a tier of memory.
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
  // Brings rows up to tier `to`, a memory tier. REQUIRES: `claim` is for its slots, and claim.count() >=
  // max_rows, counting both rows that come up and new rows; `phase` is at all memory tiers. Rows from below a
  // pool take their places in it from `places`, or from the pool if that is null.
  Rise(RowStore& store, size_t to, SlotClaim& claim, size_t max_rows, Phase& phase,
       PoolClaim* places = nullptr);

  enum class Outcome {
    kUp,
    kToRead,   // the row must be read first: it wasn't, or it has changed since
    kDamaged,  // the row's medium doesn't return it
    kNoRoom,   // the pool has no place that the row could own
  };
  // Brings up the row of `entry`, of which `copy` is the row as it was read before. A row in a memory tier is
  // read in place. `served` is the accesses for which the row comes up, and counts them; empty if it comes up
  // for an update. REQUIRES: the row is below the tier.
  Outcome bring_up(IndexShard& shard, const IndexEntry& entry, int64_t key, RowInFlight copy,
                   const std::optional<ServedAccesses>& served) REQUIRES(shard.mutex);
  // Prefetches what bring_up() will copy, for a row that was at `at`.
  void fetch(RowRef at, RowInFlight copy) const;

  // The claimed slots; new rows take theirs here, too.
  MemoryTierSlots& slots() { return slots_; }
  // The number of rows that came up from a lower level.
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
  std::vector<float> floats_;  // floats of one row
};

}  // namespace embstore
