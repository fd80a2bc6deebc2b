#include "movement/row_relocator.h"

#include "store/shard_order.h"

namespace embstore {

// Rows stay in their tier, so no row count changes; the tier erases the copies that nothing refers to.
void RowRelocator::relocate(std::span<Relocation> rows) {
  const auto tier = static_cast<uint32_t>(store_.tiers().size() - 1);
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  const PageVector<uint32_t> order =
      in_order_of_shards(rows.size(), [&rows](size_t i) { return rows[i].key; });
  for (size_t first = 0; first < order.size();) {
    const int number = shard_of_key(rows[order[first]].key);
    IndexShard& shard = store_.shard(number);
    MutexLock lock(shard.mutex);
    for (; first < order.size(); ++first) {
      Relocation& row = rows[order[first]];
      if (shard_of_key(row.key) != number) break;
      if (first + IndexReader::kBucketsFetchedAhead < order.size()) {
        reader.prefetch(rows[order[first + IndexReader::kBucketsFetchedAhead]].key);
      }
      const IndexEntry entry = shard.entry(row.key);
      if (!entry || entry.ref() != RowRef(tier, row.from)) continue;
      store_.tiers().tier(tier).carry_rank(row.from, row.to);
      shard.set_ref(entry, RowRef(tier, row.to));
      row.done = true;
    }
  }
}

}  // namespace embstore
