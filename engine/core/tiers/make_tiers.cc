#include "tiers/make_tiers.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "access/tier_meter.h"
#include "errors/error.h"
#include "memory/address_space.h"
#include "memory/memory.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/leveldb/leveldb_tier.h"
#include "tiers/log/ssd_hash_tier.h"

namespace embstore {
namespace {

// Enough to evict in batches that are worth a scan of the tier, and to let writers go on meanwhile; small
// beside the tier itself.
constexpr uint64_t kMinHeadroomRows = 256;
constexpr uint64_t kMaxHeadroomRows = 16384;

constexpr const char* kHbm = "HBM";
constexpr const char* kMemkind = "PMEM_MEMKIND";
constexpr const char* kPool = "PMEM_POOL";

// The ending of a pool's file. Its checkpoints lie beside it.
constexpr const char* kPoolEnding = ".pool";

const std::string& path_of(const TierSpec& spec) {
  if (spec.path) return *spec.path;
  throw Error(ErrorKind::kInvalidArgument, "storage_path: a " + spec.kind + " tier needs one");
}

// Limits on what a first tier may grow by beyond its headroom, for batches that bring more rows than there is
// room for. Only addresses are reserved until such a batch comes. The limits are the rows of the largest
// batch whose gradients fit into a computer's memory.
constexpr uint64_t kMaxBytesOfOneBatch = uint64_t{64} << 30;
constexpr uint64_t kMaxRowsOfOneBatch = uint64_t{1} << 26;

std::unique_ptr<Memory> make_memory(const TierSpec& spec, size_t size_bytes, size_t reserved_bytes) {
  if (spec.kind == "DRAM") return allocate_heap_memory(size_bytes, reserved_bytes, spec.nodes);
  if (spec.kind == kMemkind) return allocate_memkind_memory(size_bytes);
  return map_libpmem_memory(path_of(spec), size_bytes);
}

std::unique_ptr<MemoryTier> make_memory_tier(const TierSpec& spec, const RowLayout& layout, MemoryRole role,
                                             uint64_t slots) {
  uint64_t max_slots = slots;
  if (role == MemoryRole::kFirst && spec.kind == "DRAM") {
    const uint64_t bytes = ReservedAddresses::affordable(kMaxBytesOfOneBatch);
    max_slots += std::min({kMaxRowsOfOneBatch, bytes / MemoryTier::bytes_per_added_slot(layout),
                           uint64_t{RowRef::kMaxSlots} - slots});
  }
  return std::make_unique<MemoryTier>(spec.kind, layout, role, slots, max_slots,
                                      make_memory(spec, MemoryTier::bytes_for(layout, role, slots),
                                                  MemoryTier::bytes_for(layout, role, max_slots)));
}

MemoryRole role_of(size_t tier, size_t tiers) {
  if (tiers == 1) return MemoryRole::kOnly;
  if (tier == 0) return MemoryRole::kFirst;
  return tier + 1 == tiers ? MemoryRole::kLast : MemoryRole::kMiddle;
}

CompactionMode compaction_mode() {
  constexpr const char* kVariable = "TF_SSDHASH_ASYNC_COMPACTION";
  const char* const value = std::getenv(kVariable);
  const std::string_view mode = value != nullptr ? value : "";
  if (mode.empty() || mode == "0") return CompactionMode::kWritingThread;
  if (mode == "1") return CompactionMode::kOwnThread;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(kVariable) +
                  " must be 0 (the writing thread compacts) or 1 (a thread of its "
                  "own), got " +
                  value);
}

std::unique_ptr<SsdHashTier> make_ssd_hash(const log::TableIdentity& table, const TierSpec& spec,
                                           bool is_durable) {
  SsdHashOptions options = spec.ssd_hash;
  options.compaction = compaction_mode();
  options.keeps_checkpoints = is_durable;
  return std::make_unique<SsdHashTier>(table, path_of(spec), options);
}

std::unique_ptr<PoolTier> make_pool(const log::Checkpoints& checkpoints, const TierSpec& spec, size_t tier,
                                    size_t tiers) {
  const RowLayout& layout = checkpoints.table().layout;
  if (tiers > tier + 2) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: PMEM_POOL can only have one tier below it");
  }
  if (!spec.size_bytes) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: a PMEM_POOL tier needs one");
  }
  if (PoolTier::slots_for(layout, *spec.size_bytes) <= PoolTier::kHeadroomSlots) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: a pool of " + std::to_string(*spec.size_bytes) +
                                                 " bytes has no room for rows of " +
                                                 std::to_string(layout.row_bytes()) + " bytes beside the " +
                                                 std::to_string(PoolTier::kHeadroomSlots) +
                                                 " that it keeps free for moves");
  }
  return std::make_unique<PoolTier>(path_of(spec) + kPoolEnding, checkpoints.table(), *spec.size_bytes,
                                    checkpoints.any_found(), libpmem(), files::system_file_calls(),
                                    tiers == 2 ? PoolRole::kLast : PoolRole::kMiddle);
}

// Returns how many rows a pool above another tier may hold. Rows of the tiers above have places in it too; a
// quarter of the rest is for rows that change between two checkpoints.
uint64_t middle_capacity_of(const PoolTier& pool, uint64_t rows_above) {
  const uint64_t slots = pool.slot_count() - PoolTier::kHeadroomSlots;
  if (slots <= rows_above) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: the pool has " + std::to_string(pool.slot_count()) +
                    " places, of which rows of the tiers above may need " + std::to_string(rows_above) +
                    " and moves " + std::to_string(PoolTier::kHeadroomSlots) +
                    "; make the pool larger, or the tiers above smaller");
  }
  const uint64_t left = slots - rows_above;
  return std::max<uint64_t>(1, left - left / 4);
}

// Returns the medium that tiers share, unless the spec names one: a GPU, the computer's DRAM, memkind's
// nodes, or the device of a directory.
std::shared_ptr<SharedMedium> medium_of(const TierSpec& spec) {
  if (spec.medium != nullptr) return spec.medium;
  if (spec.kind == kHbm) return SharedMedium::named(kHbm + (" of " + spec.gpu.name));
  if (!spec.path) return SharedMedium::named(spec.kind);
  return SharedMedium::named(std::filesystem::path(*spec.path).parent_path().string());
}

bool is_memory(const std::string& kind) {
  return kind == "DRAM" || kind == "PMEM_LIBPMEM" || kind == kMemkind;
}

uint64_t capacity_of(const TierSpec& spec, const RowLayout& layout) {
  if (!spec.size_bytes) return kUnlimitedRows;
  const uint64_t rows = *spec.size_bytes / layout.row_bytes();
  if (rows == 0) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: " + std::to_string(*spec.size_bytes) +
                                                 " bytes hold no row of " +
                                                 std::to_string(layout.row_bytes()) + " bytes");
  }
  if (rows > RowRef::kMaxSlots - kMaxHeadroomRows) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(*spec.size_bytes) + " bytes hold " + std::to_string(rows) +
                    " rows, more than the " + std::to_string(RowRef::kMaxSlots - kMaxHeadroomRows) +
                    " that a tier of one partition can address; raise partition_num");
  }
  return rows;
}

// Returns the path prefix of the table's checkpoints; nullopt if it has none.
std::optional<std::string> checkpoints_prefix(const std::vector<TierSpec>& specs) {
  for (size_t t = 0; t < specs.size(); ++t) {
    if (specs[t].kind == kPool && specs.back().kind == "LEVELDB") {
      throw Error(ErrorKind::kInvalidArgument,
                  "tiers: below a PMEM_POOL there can be SSDHASH, not LEVELDB, which keeps no checkpoints");
    }
    if (specs[t].kind == kPool) return path_of(specs[t]) + kPoolEnding;
    if (specs[t].kind == "SSDHASH" && specs[t].keeps_rows) return path_of(specs[t]);
  }
  return std::nullopt;
}

void make_pool_level(MadeTiers& made, size_t t, const TierSpec& spec, size_t tiers) {
  MadeTier& level = made.tiers[t];
  const size_t above = made.has_stage ? 2 : 0;  // HBM and its stage lie above DRAM
  if (t != above + 1 || made.tiers[above].memory == nullptr) {
    throw Error(ErrorKind::kInvalidArgument,
                "tiers: PMEM_POOL can only be right below DRAM, which is the first, or below HBM");
  }
  auto pool = make_pool(*made.checkpoints, spec, t, tiers);
  made.pool = pool.get();
  level.durable = pool.get();
  level.headroom_rows = PoolTier::kHeadroomSlots / 2;
  if (t + 1 == tiers) {
    level.capacity_rows = pool->slot_count() - PoolTier::kHeadroomSlots;
  } else {
    uint64_t rows_above = 0;
    for (size_t u = 0; u < t; ++u) rows_above += made.tiers[u].capacity_rows + made.tiers[u].headroom_rows;
    level.capacity_rows = middle_capacity_of(*pool, rows_above);
    const uint64_t reserve = pool->slot_count() - rows_above - level.capacity_rows;
    made.min_free_pool_slots = PoolTier::kHeadroomSlots + (reserve - PoolTier::kHeadroomSlots) / 2;
    level.ranked = pool.get();
  }
  level.tier = std::move(pool);
}

void make_file_level(MadeTiers& made, size_t t, const TierSpec& spec, const log::TableIdentity& table,
                     size_t tiers) {
  MadeTier& level = made.tiers[t];
  if (t == 0 || t + 1 != tiers) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: " + spec.kind + " can only be the last of several");
  }
  if (spec.kind == "SSDHASH") {
    const bool is_durable = made.checkpoints != nullptr;
    auto tier = make_ssd_hash(table, spec, is_durable);
    if (is_durable) level.durable = tier.get();
    made.keeps_rows = is_durable && made.pool == nullptr;
    level.tier = std::move(tier);
  } else if (spec.kind == "LEVELDB") {
    level.tier = std::make_unique<LevelDbTier>(table.table_name, table.layout, path_of(spec));
  } else {
    throw Error(ErrorKind::kInvalidArgument, "tiers: there is no tier of kind " + spec.kind);
  }
}

uint64_t headroom_of(uint64_t capacity_rows) {
  return std::clamp(capacity_rows / 8, kMinHeadroomRows, kMaxHeadroomRows);
}

// Makes the stage above HBM. It has headroom only, since no row stays in it.
void make_stage(MadeTiers& made, uint64_t headroom_rows, const RowLayout& layout) {
  MadeTier& level = made.tiers[0];
  level.headroom_rows = headroom_rows;
  auto tier = make_memory_tier({.kind = "DRAM", .path = {}, .size_bytes = {}}, layout, MemoryRole::kFirst,
                               headroom_rows);
  level.memory = tier.get();
  level.ranked = tier.get();
  level.tier = std::move(tier);
  level.tier->meter().set_medium(SharedMedium::named("DRAM"));
}

std::unique_ptr<HbmTier> make_hbm_tier(const TierSpec& spec, const RowLayout& layout, uint64_t slots,
                                       HbmTier::Copies copies) {
  std::shared_ptr<gpu::Device> device = gpu::open_device(spec.gpu);
  try {
    const size_t piece_bytes = spec.piece_bytes.value_or(HbmTier::kPieceBytes);
    return std::make_unique<HbmTier>(layout, slots, std::move(device), piece_bytes, copies);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStoreFull) throw;
    throw Error(ErrorKind::kStoreFull, "storage_size: an HBM tier of " + std::to_string(slots) +
                                           " rows, with those on the move, doesn't fit: " + error.what());
  }
}

void make_hbm_level(MadeTiers& made, size_t t, const TierSpec& spec, const RowLayout& layout,
                    HbmTier::Copies copies) {
  MadeTier& level = made.tiers[t];
  if (!made.has_stage || t != 1) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: HBM can only be the first");
  }
  if (level.capacity_rows == kUnlimitedRows) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: an HBM tier needs one");
  }
  level.headroom_rows = headroom_of(level.capacity_rows);
  make_stage(made, level.headroom_rows, layout);
  std::unique_ptr<HbmTier> tier =
      make_hbm_tier(spec, layout, level.capacity_rows + level.headroom_rows, copies);
  made.hbm = tier.get();
  if (t + 1 < made.tiers.size()) level.ranked = tier.get();
  level.tier = std::move(tier);
}

void make_memory_level(MadeTiers& made, size_t t, const TierSpec& spec, const RowLayout& layout,
                       size_t tiers) {
  MadeTier& level = made.tiers[t];
  if (level.capacity_rows == kUnlimitedRows) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: a " + spec.kind + " tier needs one");
  }
  if (tiers > 1) level.headroom_rows = headroom_of(level.capacity_rows);
  auto tier = make_memory_tier(spec, layout, role_of(t, tiers), level.capacity_rows + level.headroom_rows);
  // Rows of watched tiers aren't pinned: the watcher records and paces accesses of the host. Pages of
  // memkind's nodes may become unmovable when pinned, and pages of files can't be pinned.
  if (made.hbm != nullptr && spec.kind == "DRAM" && spec.watcher == nullptr) {
    tier->pin_rows(made.hbm->shared_device());
  }
  level.memory = tier.get();
  if (tier->is_ranked()) level.ranked = tier.get();
  level.tier = std::move(tier);
}

}  // namespace

MadeTiers make_tiers(const std::string& table_name, const std::string& optimizer, const RowLayout& layout,
                     const std::vector<TierSpec>& specs) {
  if (specs.empty() || specs.size() > kMaxRequestedTiers) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: a table has 1 to " + std::to_string(kMaxRequestedTiers) +
                                                 " tiers, got " + std::to_string(specs.size()));
  }
  MadeTiers made;
  log::TableIdentity table{table_name, optimizer, layout, {}};
  if (const std::optional<std::string> prefix = checkpoints_prefix(specs)) {
    std::filesystem::create_directories(std::filesystem::path(*prefix).parent_path());
    made.checkpoints = std::make_unique<log::Checkpoints>(*prefix, table);
    table = made.checkpoints->table();
  }
  made.has_stage = specs.front().kind == kHbm;
  const size_t tiers = specs.size() + (made.has_stage ? 1 : 0);
  made.tiers.resize(tiers);
  const auto has = [&specs](const char* kind) {
    return std::any_of(specs.begin(), specs.end(),
                       [kind](const TierSpec& spec) { return spec.kind == kind; });
  };
  std::vector<DurableTier*> durable;
  for (size_t t = tiers - specs.size(); t < tiers; ++t) {
    TierSpec spec = specs[t - (tiers - specs.size())];
    if (spec.kind == "DRAM" && has(kMemkind)) spec.nodes = nodes_without_memkind();
    MadeTier& level = made.tiers[t];
    level.capacity_rows = capacity_of(spec, layout);
    if (spec.kind == kPool) {
      make_pool_level(made, t, spec, tiers);
    } else if (spec.kind == kHbm) {
      make_hbm_level(made, t, spec, layout, has(kPool) ? HbmTier::Copies::kInPool : HbmTier::Copies::kNone);
    } else if (is_memory(spec.kind)) {
      make_memory_level(made, t, spec, layout, tiers);
    } else {
      make_file_level(made, t, spec, table, tiers);
    }
    if (level.durable != nullptr) durable.push_back(level.durable);
    TierMeter& meter = level.tier->meter();
    meter.set_medium(medium_of(spec));
    if (spec.watcher != nullptr) meter.watch(level.tier.get(), spec.watcher);
  }
  if (made.checkpoints != nullptr) made.checkpoints->adopt_kept(std::move(durable));
  return made;
}

}  // namespace embstore
