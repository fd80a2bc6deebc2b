#include "update/device_changes.h"

#include "store/inclusive_cache.h"
#include "store/shard_order.h"

namespace embstore {

DeviceChanges::DeviceChanges(RowStore& store, std::span<const Slot> marked) : store_(store) {
  if (marked.empty()) return;
  const RankedTier& tier = *store.tiers().ranked(store.tiers().tier_of_level(0));
  rows_.reserve(marked.size());
  for (const uint32_t i : in_order_of_shards(marked.size(), [&](size_t n) { return tier.key(marked[n]); })) {
    rows_.push_back({tier.key(marked[i]), marked[i]});
  }
}

void DeviceChanges::commit(PoolClaim& places) noexcept {
  const auto tier = static_cast<uint32_t>(store_.tiers().tier_of_level(0));
  for (size_t first = 0; first < rows_.size();) {
    const int number = shard_of_key(rows_[first].key);
    IndexShard& shard = store_.shard(number);
    const MutexLock lock(shard.mutex);
    InclusiveCache::Changes changes(*store_.cache());
    for (; first < rows_.size() && shard_of_key(rows_[first].key) == number; ++first) {
      if (changes.prepare_change(RowRef(tier, rows_[first].slot), rows_[first].key)) places.pass_on();
    }
  }
}

}  // namespace embstore
