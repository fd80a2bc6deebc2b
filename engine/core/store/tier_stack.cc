#include "store/tier_stack.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "access/tier_meter.h"
#include "errors/error.h"
#include "memory/memory.h"
#include "tiers/leveldb/leveldb_tier.h"
#include "tiers/ssd_hash/ssd_hash_tier.h"

namespace embstore {
namespace {

// Enough to evict in batches worth a scan of the tier, and to let writers go on meanwhile; little beside
// the tier itself.
constexpr uint64_t kLeastHeadroomRows = 256;
constexpr uint64_t kMostHeadroomRows = 16384;

const std::string& path_of(const TierSpec& spec) {
  if (spec.path) return *spec.path;
  throw Error(ErrorKind::kInvalidArgument, "storage_path: a " + spec.kind + " tier needs one");
}

// Beyond a first tier's headroom, for batches that bring more rows than there is room for: addresses alone, until
// one comes. As much as the rows of a batch can take whose gradients a computer has memory for.
constexpr uint64_t kMostBytesOfOneBatch = uint64_t{64} << 30;
constexpr uint64_t kMostRowsOfOneBatch = uint64_t{1} << 26;

std::unique_ptr<Memory> make_memory(const TierSpec& spec, size_t size_bytes, size_t reserved_bytes) {
  if (spec.kind == "DRAM") return allocate_heap_memory(size_bytes, reserved_bytes);
  if (spec.kind == "PMEM_MEMKIND") return allocate_memkind_memory(size_bytes);
  return map_libpmem_memory(path_of(spec), size_bytes);
}

std::unique_ptr<MemoryTier> make_memory_tier(const TierSpec& spec, const RowLayout& layout, MemoryRole role,
                                             uint64_t slots) {
  uint64_t most_slots = slots;
  if (role == MemoryRole::kFirst && spec.kind == "DRAM") {
    most_slots += std::min({kMostRowsOfOneBatch, kMostBytesOfOneBatch / layout.row_bytes(),
                            uint64_t{RowRef::kMaxSlots} - slots});
  }
  return std::make_unique<MemoryTier>(spec.kind, layout, role, slots, most_slots,
                                      make_memory(spec, MemoryTier::bytes_for(layout, role, slots),
                                                  MemoryTier::bytes_for(layout, role, most_slots)));
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

SsdHashOptions ssd_hash_options(const TierSpec& spec) {
  SsdHashOptions options = spec.ssd_hash;
  options.compaction = compaction_mode();
  return options;
}

std::unique_ptr<Tier> make_file_tier(const std::string& table_name, const TierSpec& spec,
                                     const RowLayout& layout) {
  if (spec.kind == "LEVELDB") return std::make_unique<LevelDbTier>(table_name, layout, path_of(spec));
  if (spec.kind == "SSDHASH") {
    const SsdHashOptions options = ssd_hash_options(spec);
    auto tier = std::make_unique<SsdHashTier>(table_name, layout, path_of(spec), options);
    if (options.keeps == Keeps::kNothing && !tier->is_ready()) {
      throw Error(ErrorKind::kStorage,
                  path_of(spec) +
                      ": holds rows that were kept; keep_files takes them over, or remove the "
                      "directory to start without them");
    }
    return tier;
  }
  throw Error(ErrorKind::kInvalidArgument, "tiers: there is no tier of kind " + spec.kind);
}

// The last tier, which takes part in the checkpoints of the pool above it.
std::unique_ptr<SsdHashTier> make_following_tier(const std::string& table_name, const TierSpec& spec,
                                                 const RowLayout& layout, const std::string& optimizer) {
  SsdHashOptions options = ssd_hash_options(spec);
  options.keeps = Keeps::kCheckpoints;
  options.optimizer = optimizer;
  return std::make_unique<SsdHashTier>(table_name, layout, path_of(spec), options);
}

std::vector<CheckpointName> names_of(const std::vector<PoolCheckpoint>& checkpoints) {
  std::vector<CheckpointName> names;
  for (const PoolCheckpoint& checkpoint : checkpoints) names.push_back({checkpoint.number, checkpoint.id});
  return names;
}

std::unique_ptr<PoolTier> make_pool(const std::string& table_name, const std::vector<TierSpec>& specs,
                                    const RowLayout& layout, size_t tier) {
  if (tier != 1 || specs.size() > 3) {
    throw Error(ErrorKind::kInvalidArgument,
                "tiers: PMEM_POOL can only be the second, below DRAM, and have one tier below it");
  }
  if (specs.size() == 3 && specs[2].kind != "SSDHASH") {
    throw Error(ErrorKind::kInvalidArgument,
                "tiers: below a PMEM_POOL there can be SSDHASH, not " + specs[2].kind);
  }
  const TierSpec& spec = specs[tier];
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
  return std::make_unique<PoolTier>(path_of(spec), layout, PoolIdentity{table_name, spec.optimizer},
                                    *spec.size_bytes, libpmem(), files::system_file_calls(),
                                    specs.size() == 2 ? PoolRole::kLast : PoolRole::kMiddle);
}

// Rows that a pool may hold above another tier. Those of the first tier have their places in it too; a quarter of what is
// left is for rows that change between two checkpoints.
uint64_t middle_capacity_of(const PoolTier& pool, uint64_t first_tier_rows) {
  const uint64_t slots = pool.slot_count() - PoolTier::kHeadroomSlots;
  if (slots <= first_tier_rows) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: the pool has " + std::to_string(pool.slot_count()) +
                    " places, of which rows of the DRAM tier may need " + std::to_string(first_tier_rows) +
                    " and moves " + std::to_string(PoolTier::kHeadroomSlots) +
                    "; make the pool larger, or the DRAM tier smaller");
  }
  const uint64_t left = slots - first_tier_rows;
  return std::max<uint64_t>(1, left - left / 4);
}

// What tiers share, unless the spec says otherwise: the computer's DRAM, memkind's nodes, or what a directory lies on.
std::shared_ptr<SharedMedium> medium_of(const TierSpec& spec) {
  if (spec.medium != nullptr) return spec.medium;
  if (!spec.path) return SharedMedium::named(spec.kind);
  return SharedMedium::named(std::filesystem::path(*spec.path).parent_path().string());
}

bool is_memory(const std::string& kind) {
  return kind == "DRAM" || kind == "PMEM_LIBPMEM" || kind == "PMEM_MEMKIND";
}

uint64_t capacity_of(const TierSpec& spec, const RowLayout& layout) {
  if (!spec.size_bytes) return kUnlimitedRows;
  const uint64_t rows = *spec.size_bytes / layout.row_bytes();
  if (rows == 0) {
    throw Error(ErrorKind::kInvalidArgument, "storage_size: " + std::to_string(*spec.size_bytes) +
                                                 " bytes hold no row of " +
                                                 std::to_string(layout.row_bytes()) + " bytes");
  }
  if (rows > RowRef::kMaxSlots - kMostHeadroomRows) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(*spec.size_bytes) + " bytes hold " + std::to_string(rows) +
                    " rows, more than the " + std::to_string(RowRef::kMaxSlots - kMostHeadroomRows) +
                    " that a tier of one partition can address; raise partition_num");
  }
  return rows;
}

}  // namespace

TierStack::TierStack(const std::string& table_name, const std::vector<TierSpec>& specs,
                     const RowLayout& layout)
    : levels_(specs.size()) {
  if (specs.empty() || specs.size() > RowRef::kMaxTiers) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: a table has 1 to " + std::to_string(RowRef::kMaxTiers) +
                                                 " tiers, got " + std::to_string(specs.size()));
  }
  const bool rows_move = specs.size() > 1;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TierSpec& spec = specs[t];
    Level& level = levels_[t];
    level.capacity_rows = capacity_of(spec, layout);
    if (spec.kind == "PMEM_POOL") {
      level.tier = make_pool(table_name, specs, layout, t);
      pool_ = static_cast<PoolTier*>(level.tier.get());
      level.headroom_rows = PoolTier::kHeadroomSlots / 2;
      if (t + 1 == specs.size()) {
        level.capacity_rows = pool_->slot_count() - PoolTier::kHeadroomSlots;
      } else {
        const uint64_t first_tier_rows = levels_[0].capacity_rows + levels_[0].headroom_rows;
        level.capacity_rows = middle_capacity_of(*pool_, first_tier_rows);
        const uint64_t reserve = pool_->slot_count() - first_tier_rows - level.capacity_rows;
        least_free_pool_slots_ = PoolTier::kHeadroomSlots + (reserve - PoolTier::kHeadroomSlots) / 2;
        level.ranked = pool_;
      }
      continue;
    }
    if (pool_ != nullptr) {
      auto below = make_following_tier(table_name, spec, layout, specs[t - 1].optimizer);
      follower_ = below.get();
      level.tier = std::move(below);
      follower_->take_up(names_of(pool_->checkpoints()));
      continue;
    }
    if (!is_memory(spec.kind)) {
      if (t == 0 || t + 1 != specs.size()) {
        throw Error(ErrorKind::kInvalidArgument, "tiers: " + spec.kind + " can only be the last of several");
      }
      level.tier = make_file_tier(table_name, spec, layout);
      continue;
    }
    if (level.capacity_rows == kUnlimitedRows) {
      throw Error(ErrorKind::kInvalidArgument, "storage_size: a " + spec.kind + " tier needs one");
    }
    if (rows_move) {
      level.headroom_rows = std::clamp(level.capacity_rows / 8, kLeastHeadroomRows, kMostHeadroomRows);
    }
    auto tier =
        make_memory_tier(spec, layout, role_of(t, specs.size()), level.capacity_rows + level.headroom_rows);
    level.memory = tier.get();
    if (tier->is_ranked()) level.ranked = tier.get();
    level.tier = std::move(tier);
  }
  first_ = levels_.front().memory;
  for (size_t t = 0; t < specs.size(); ++t) {
    TierMeter& meter = tier(t).meter();
    meter.lies_on(medium_of(specs[t]));
    if (specs[t].watcher != nullptr) meter.watch(this, specs[t].watcher);
  }
}

void TierStack::start_compaction(Relocator& relocator) {
  for (size_t t = 1; t < size(); ++t) tier(t).start_compaction(relocator);
}

void TierStack::compact() {
  for (size_t t = 1; t < size(); ++t) tier(t).compact();
}

void TierStack::drain() {
  for (size_t t = 1; t < size(); ++t) tier(t).drain();
}

void TierStack::close() {
  for (const Level& level : levels_) level.tier->close();
}

uint64_t TierStack::total_capacity_rows() const {
  uint64_t total = 0;
  for (const Level& level : levels_) {
    if (level.capacity_rows == kUnlimitedRows) return kUnlimitedRows;
    total += level.capacity_rows;
  }
  return total;
}

}  // namespace embstore
