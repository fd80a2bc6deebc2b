// Makes the tiers of a table from what was asked for: the one place that knows which kinds there are.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "access/phase_watcher.h"
#include "access/shared_medium.h"
#include "gpu/open_device.h"
#include "tiers/log/checkpoints.h"
#include "tiers/log/pool_tier.h"
#include "tiers/log/ssd_hash_options.h"
#include "tiers/memory/memory_tier.h"
#include "tiers/memory/ranked_tier.h"
#include "tiers/tier.h"

namespace embstore {

class HbmTier;

inline constexpr uint64_t kUnlimitedRows = std::numeric_limits<uint64_t>::max();
inline constexpr size_t kMostTiersAskedFor = 4;

struct TierSpec {
  // "HBM", "DRAM", "PMEM_LIBPMEM", "PMEM_MEMKIND", "PMEM_POOL", "SSDHASH" or "LEVELDB"
  std::string kind;
  std::optional<std::string> path;     // of a tier that is kept in files
  std::optional<uint64_t> size_bytes;  // nothing: unlimited, which only a last tier in files may be
  std::vector<int> nodes = {};         // of a DRAM tier: the NUMA nodes that alone have its rows; none: any
  SsdHashOptions ssd_hash = {};        // of an SSDHASH tier; how it compacts is the environment's to say
  gpu::DeviceChoice gpu = {};          // of an HBM tier
  std::optional<size_t> piece_bytes = std::nullopt;  // of an HBM tier: of rows that go over the bus at once
  bool keeps_rows = false;  // of an SSDHASH tier without a pool above: closing the table makes a checkpoint
  std::shared_ptr<SharedMedium> medium = nullptr;  // null: one for all tiers in its directory, or of its kind
  std::shared_ptr<PhaseWatcher> watcher = nullptr;  // as long as the tier lives
};

struct MadeTier {
  std::unique_ptr<Tier> tier;
  MemoryTier* memory = nullptr;    // if it's one of memory
  RankedTier* ranked = nullptr;    // if rows go on from it to the next by how they rank
  DurableTier* durable = nullptr;  // if its rows belong to checkpoints
  uint64_t capacity_rows = 0;
  uint64_t headroom_rows = 0;  // slots beyond the capacity, for rows on the move
};

struct MadeTiers {
  std::unique_ptr<log::Checkpoints> checkpoints;  // null where no tier is durable
  std::vector<MadeTier> tiers;                    // first to last; they go before the checkpoints do
  PoolTier* pool = nullptr;                       // the durable tier below the first, if there is one
  HbmTier* hbm = nullptr;                         // the tier in a GPU's memory, if there is one
  bool has_stage = false;              // the first tier is one that nobody asked for, see TierStack
  uint64_t least_free_pool_slots = 0;  // below it, a pool above another tier is short
  bool keeps_rows = false;             // closing the table makes a checkpoint
};

// Throws Error(kInvalidArgument), or whatever a tier needs and can't have. All tiers but the last are of memory, or a GPU's,
// since rows are ranked there. `optimizer`: whose rows these are.
MadeTiers make_tiers(const std::string& table_name, const std::string& optimizer, const RowLayout& layout,
                     const std::vector<TierSpec>& specs);

}  // namespace embstore
