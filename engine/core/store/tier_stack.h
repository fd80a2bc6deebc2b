// The tiers of a table, first to last, and how many rows each may hold.
//
// Rows are updated in the first tier, which the host can address. If the first tier that was asked for is a
// GPU's memory, there is one more tier above it: a stage in DRAM, in which no row stays. From outside the two
// are one level, the first.
#pragma once

#include <cstdint>

#include "access/phase.h"
#include "tiers/make_tiers.h"

namespace embstore {

class TierStack {
 public:
  explicit TierStack(MadeTiers made) : made_(std::move(made)) {}

  size_t size() const { return made_.tiers.size(); }

  // --- Levels: the tiers as they were asked for.
  size_t levels() const { return size() - stages(); }
  size_t level_of(size_t t) const { return t < stages() ? 0 : t - stages(); }
  bool are_same_level(size_t t, size_t u) const { return level_of(t) == level_of(u); }
  // The tier in a GPU's memory; null if there is none.
  HbmTier* hbm() const { return made_.hbm; }
  // The tier in which the level's rows stay.
  size_t tier_of_level(size_t level) const { return level + stages(); }

  MemoryTier& first() const { return *made_.tiers.front().memory; }
  Tier& tier(size_t t) const { return *made_.tiers[t].tier; }
  // The durable tier below memory tiers; null if there is none.
  PoolTier* pool() const { return made_.pool; }
  // For a pool above another tier: whether less than half is left of the slots that it keeps for rows that
  // change between two checkpoints.
  bool is_pool_short() const { return pool() != nullptr && pool()->free_slots() < made_.min_free_pool_slots; }
  // The checkpoints of the durable tiers; null if there are none.
  log::Checkpoints* checkpoints() const { return made_.checkpoints.get(); }
  // The number of the nth durable tier.
  uint32_t durable_tier(size_t n) const;
  // True if closing the table makes a checkpoint with all rows in the last tier.
  bool keeps_rows() const { return made_.keeps_rows; }
  // The tier, if its rows go down to the next tier by rank; else null.
  RankedTier* ranked(size_t t) const { return made_.tiers[t].ranked; }
  // The tier, if it is a memory tier; else null.
  MemoryTier* memory(size_t t) const { return made_.tiers[t].memory; }
  // True if all rows but those in a GPU's memory are in memory tiers.
  bool host_rows_are_in_memory() const;

  uint64_t capacity_rows(size_t t) const { return made_.tiers[t].capacity_rows; }
  uint64_t total_capacity_rows() const;  // kUnlimitedRows if any tier is
  // Slots beyond the capacity, for rows on the move.
  uint64_t headroom_rows(size_t t) const { return made_.tiers[t].headroom_rows; }

  // Upkeep of the tiers below the first; see Tier.
  void start_compaction(Relocator& relocator);
  void compact();
  void drain();
  void close();

 private:
  size_t stages() const { return made_.has_stage ? 1 : 0; }

  MadeTiers made_;
};

// A phase at every memory tier.
class MemoryPhase : public Phase {
 public:
  explicit MemoryPhase(const TierStack& tiers) : Phase(tiers.first().meter()) {
    for (size_t t = 1; t < tiers.size(); ++t) {
      if (tiers.memory(t) != nullptr) add_meter(tiers.tier(t).meter());
    }
  }
};

}  // namespace embstore
