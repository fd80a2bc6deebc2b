// The tiers of a table, first to last: which there are, and how many rows each may hold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "access/phase_watcher.h"
#include "access/shared_medium.h"
#include "store/row_counts.h"
#include "tiers/memory/memory_tier.h"
#include "tiers/pool/pool_tier.h"
#include "tiers/ssd_hash/options.h"
#include "tiers/tier.h"

namespace embstore {

struct TierSpec {
  // "DRAM", "PMEM_LIBPMEM", "PMEM_MEMKIND", "PMEM_POOL", "SSDHASH" or "LEVELDB"
  std::string kind;
  std::optional<std::string> path;     // of a tier that is kept in files
  std::optional<uint64_t> size_bytes;  // nothing: unlimited, which only a last tier in files may be
  SsdHashOptions ssd_hash = {};        // of an SSDHASH tier; how it compacts is the environment's to say
  std::string optimizer = {};          // whose rows a pool keeps
  std::shared_ptr<SharedMedium> medium = nullptr;  // null: one for all tiers in its directory, or of its kind
  std::shared_ptr<PhaseWatcher> watcher = nullptr;  // as long as the tier lives
};

class TierStack {
 public:
  // Throws Error(kInvalidArgument), or whatever a tier needs and can't have. All tiers but the last are of
  // memory, since rows are ranked there.
  TierStack(const std::string& table_name, const std::vector<TierSpec>& specs, const RowLayout& layout);

  size_t size() const { return levels_.size(); }
  MemoryTier& first() const { return *first_; }
  Tier& tier(size_t t) const { return *levels_[t].tier; }
  // The only one that may keep its rows.
  Tier& last() const { return *levels_.back().tier; }
  // The durable tier below the first, if there is one; else null.
  PoolTier* pool() const { return pool_; }
  // Whether less than half is left of what a pool above another tier keeps for rows that change between two checkpoints.
  bool is_pool_short() const { return pool_ != nullptr && pool_->free_slots() < least_free_pool_slots_; }
  // The tier below it that takes part in its checkpoints, if there is one; else null.
  CheckpointFollower* follower() const { return follower_; }
  // The tier, if rows go on from it to the next by how they rank; else null.
  RankedTier* ranked(size_t t) const { return levels_[t].ranked; }
  // The tier if it's one of memory; else null.
  MemoryTier* memory(size_t t) const { return levels_[t].memory; }

  uint64_t capacity_rows(size_t t) const { return levels_[t].capacity_rows; }
  uint64_t total_capacity_rows() const;  // kUnlimitedRows if any tier is
  // Slots beyond the capacity, for rows on the move.
  uint64_t headroom_rows(size_t t) const { return levels_[t].headroom_rows; }

  // Upkeep of the tiers below the first; see Tier.
  void start_compaction(Relocator& relocator);
  void compact();
  void drain();
  void close();

 private:
  struct Level {
    std::unique_ptr<Tier> tier;
    MemoryTier* memory = nullptr;
    RankedTier* ranked = nullptr;
    uint64_t capacity_rows = 0;
    uint64_t headroom_rows = 0;
  };

  std::vector<Level> levels_;
  MemoryTier* first_ = nullptr;
  PoolTier* pool_ = nullptr;
  uint64_t least_free_pool_slots_ = 0;
  CheckpointFollower* follower_ = nullptr;
};

}  // namespace embstore
