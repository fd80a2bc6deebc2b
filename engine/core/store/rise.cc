#include "store/rise.h"

#include <algorithm>

#include "store/shard_save.h"

namespace embstore {

Rise::Rise(RowStore& store, size_t to, SlotClaim& claim, size_t max_rows, Phase& phase, PoolClaim* places)
    : store_(store),
      to_(static_cast<uint32_t>(to)),
      tier_(*store.tiers().memory(to)),
      phase_(phase),
      places_(places),
      slots_(claim, max_rows),
      moves_(store, max_rows),
      floats_(store.layout().row_floats()) {}

Rise::Outcome Rise::bring_up(IndexShard& shard, const IndexEntry& entry, int64_t key, RowInFlight copy,
                             const std::optional<ServedAccesses>& served) {
  const RowRef from = entry.ref();
  RowHeader header;
  const float* floats = nullptr;
  if (const MemoryTier* const memory = store_.tiers().memory(from.tier())) {
    header = memory->header(from.slot(), key);
    memory->rows().copy_floats(from.slot(), floats_.size(), floats_.data());
    memory->count_row(phase_, Access::kLoad, from.slot());
    floats = floats_.data();
  } else {
    if (!copy || !copy.batch->is_whole(copy.i) || !copy.batch->is_valid_at(copy.i, from, store_.tiers()))
      return Outcome::kToRead;
    if (copy.batch->is_damaged(copy.i)) return Outcome::kDamaged;
    header = copy.batch->header(copy.i);
    store_.tiers().tier(from.tier()).update_rank(from.slot(), header);
    floats = copy.batch->row(copy.i);
  }
  InclusiveCache* const cache = store_.cache();
  const auto purpose = served ? InclusiveCache::ClaimPurpose::kLookUp : InclusiveCache::ClaimPurpose::kUpdate;
  if (cache != nullptr && !cache->try_claim(from, purpose, places_)) return Outcome::kNoRoom;
  if (served) {
    if (shard.save != nullptr) shard.save->prepare_change(header, floats);
    // Counted at once, so that a row that has just come up isn't ranked colder than it is.
    header.served += served->count;
    header.stamp = std::max(header.stamp, served->stamp);
  }
  const Slot slot = slots_.next();
  tier_.put(slot, header, floats);
  if (const MemoryTier* const memory = store_.tiers().memory(from.tier());
      memory != nullptr && memory->is_ranked()) {
    tier_.ranks().pin(slot, memory->ranks().pins(from.slot()));
  }
  tier_.count_row(phase_, Access::kStore, slot);
  moves_.move(shard, entry, key, RowRef(to_, slot));
  if (!store_.tiers().are_same_level(to_, from.tier())) ++promoted_;
  return Outcome::kUp;
}

void Rise::fetch(RowRef at, RowInFlight copy) const {
  if (const MemoryTier* const memory = store_.tiers().memory(at.tier())) {
    memory->prefetch(at.slot());
  } else if (copy) {
    copy.batch->prefetch(copy.i);
    store_.tiers().tier(at.tier()).prefetch_rank(at.slot());
  }
}

}  // namespace embstore
