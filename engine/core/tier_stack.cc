#include "tier_stack.h"

#include <algorithm>
#include <utility>

#include "error.h"
#include "index/bucket.h"
#include "memory/memory.h"

namespace embstore {
namespace {

// Enough to evict in batches worth a scan of the tier, and to let writers go on meanwhile; little beside
// the tier itself.
constexpr uint64_t kLeastHeadroomRows = 256;
constexpr uint64_t kMostHeadroomRows = 16384;

std::unique_ptr<Memory> make_memory(const TierSpec& spec, size_t size_bytes) {
  if (spec.kind == "DRAM") return allocate_heap_memory(size_bytes);
  if (spec.kind == "PMEM_MEMKIND") return allocate_memkind_memory(size_bytes);
  if (!spec.path) {
    throw Error(ErrorKind::kInvalidArgument, "storage_path: a " + spec.kind + " tier needs one");
  }
  return map_libpmem_memory(*spec.path, size_bytes);
}

bool is_memory(const std::string& kind) {
  return kind == "DRAM" || kind == "PMEM_LIBPMEM" || kind == "PMEM_MEMKIND";
}

uint64_t capacity_of(const TierSpec& spec, const RowLayout& layout) {
  if (!spec.size_bytes) return TierStack::kUnlimited;
  const uint64_t rows = *spec.size_bytes / layout.row_bytes();
  if (rows == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(*spec.size_bytes) + " bytes hold no row of " +
                    std::to_string(layout.row_bytes()) + " bytes");
  }
  if (rows > RowRef::kMaxSlots - kMostHeadroomRows) {
    throw Error(ErrorKind::kInvalidArgument,
                "storage_size: " + std::to_string(*spec.size_bytes) + " bytes hold " +
                    std::to_string(rows) + " rows, more than the " +
                    std::to_string(RowRef::kMaxSlots - kMostHeadroomRows) +
                    " that a tier of one partition can address; raise partition_num");
  }
  return rows;
}

}  // namespace

TierStack::TierStack(const std::vector<TierSpec>& specs, const RowLayout& layout)
    : levels_(specs.size()) {
  if (specs.empty() || !is_memory(specs.front().kind)) {
    throw Error(ErrorKind::kInvalidArgument, "tiers: the first must be one of memory");
  }
  const bool rows_move = specs.size() > 1;
  for (size_t t = 0; t < specs.size(); ++t) {
    const TierSpec& spec = specs[t];
    Level& level = levels_[t];
    level.capacity_rows = capacity_of(spec, layout);
    if (!is_memory(spec.kind)) {
      throw Error(ErrorKind::kInvalidArgument, "tiers: there is no tier of kind " + spec.kind);
    }
    if (level.capacity_rows == kUnlimited) {
      throw Error(ErrorKind::kInvalidArgument, "storage_size: a " + spec.kind + " tier needs one");
    }
    if (rows_move) {
      level.headroom_rows =
          std::clamp(level.capacity_rows / 8, kLeastHeadroomRows, kMostHeadroomRows);
    }
    const uint64_t slots = level.capacity_rows + level.headroom_rows;
    auto tier = std::make_unique<MemoryTier>(
        spec.kind, layout, slots, make_memory(spec, slots * layout.row_bytes()),
        /*ranked=*/rows_move);
    level.memory = tier.get();
    level.tier = std::move(tier);
  }
  first_ = levels_.front().memory;
}

uint64_t TierStack::total_capacity_rows() const {
  uint64_t total = 0;
  for (const Level& level : levels_) {
    if (level.capacity_rows == kUnlimited) return kUnlimited;
    total += level.capacity_rows;
  }
  return total;
}

}  // namespace embstore
