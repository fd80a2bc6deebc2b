// Makes the tiers of a table from their specifications: the only file that knows which kinds of tiers there
// are.
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
inline constexpr size_t kMaxRequestedTiers = 4;

struct TierSpec {
  // "HBM", "DRAM", "PMEM_LIBPMEM", "PMEM_MEMKIND", "PMEM_POOL", "SSDHASH" or "LEVELDB"
  std::string kind;
  std::optional<std::string> path;     // directory or file of a tier in files
  std::optional<uint64_t> size_bytes;  // nullopt: unlimited, only for a last tier in files
  std::vector<int> nodes = {};         // of a DRAM tier: rows lie on these NUMA nodes only; empty: on any
  SsdHashOptions ssd_hash = {};        // of an SSDHASH tier; the environment sets `compaction`
  gpu::DeviceChoice gpu = {};          // of an HBM tier
  std::optional<size_t> piece_bytes = std::nullopt;  // of an HBM tier: bytes sent over the bus at once
  bool keeps_rows = false;  // of an SSDHASH tier without a pool above: close() makes a checkpoint
  std::shared_ptr<SharedMedium> medium = nullptr;   // null: one for the tiers of its directory, or kind
  std::shared_ptr<PhaseWatcher> watcher = nullptr;  // may be null; lives as long as the tier
};

struct MadeTier {
  std::unique_ptr<Tier> tier;
  MemoryTier* memory = nullptr;    // if it's a memory tier
  RankedTier* ranked = nullptr;    // if rows move on to the next tier by their ranks
  DurableTier* durable = nullptr;  // if its rows belong to checkpoints
  uint64_t capacity_rows = 0;
  uint64_t headroom_rows = 0;  // slots beyond the capacity, for rows on the move
};

struct MadeTiers {
  std::unique_ptr<log::Checkpoints> checkpoints;  // null where no tier is durable
  std::vector<MadeTier> tiers;                    // first to last; destroyed before `checkpoints`
  PoolTier* pool = nullptr;                       // the durable tier below the first, if there is one
  HbmTier* hbm = nullptr;                         // the tier in a GPU's memory, if there is one
  bool has_stage = false;                         // the first tier wasn't asked for, see TierStack
  uint64_t min_free_pool_slots = 0;               // with fewer, a pool above another tier is short
  bool keeps_rows = false;                        // closing the table makes a checkpoint
};

// Makes the tiers that `specs` describe; `optimizer` is the name of the optimizer of the rows. All tiers but
// the last are in memory, a GPU's or a pool, since rows are ranked there. Throws Error(kInvalidArgument), or
// an error that names what a tier needs and can't have.
MadeTiers make_tiers(const std::string& table_name, const std::string& optimizer, const RowLayout& layout,
                     const std::vector<TierSpec>& specs);

}  // namespace embstore
