#include "store/row_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "store/shard_order.h"
#include "store/transaction.h"
#include "store/write_back.h"

namespace embstore {

namespace {

std::unique_ptr<InclusiveCache> make_cache(const TierStack& tiers) {
  if (tiers.pool() == nullptr) return nullptr;
  std::vector<InclusiveCache::Level> levels;
  for (uint32_t t = 0; t < tiers.durable_tier(0); ++t) {
    MemoryTier* const memory = tiers.memory(t);
    levels.push_back({*tiers.ranked(t), memory, memory == nullptr ? tiers.hbm() : nullptr});
  }
  return std::make_unique<InclusiveCache>(levels, *tiers.pool());
}

}  // namespace

RowStore::RowStore(MadeTiers tiers, const RowLayout& layout, Epochs& epochs)
    : layout_(layout),
      epochs_(epochs),
      index_(epochs_),
      tiers_(std::move(tiers)),
      cache_(make_cache(tiers_)),
      counts_(tiers_.total_capacity_rows()),
      spare_(layout_) {}

uint64_t RowStore::row_count() const {
  uint64_t rows = 0;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = index_.shard(s);
    MutexLock lock(shard.mutex);
    rows += shard.entries();
  }
  return rows;
}

uint64_t RowStore::index_bytes() const {
  uint64_t bytes = 0;
  for (int s = 0; s < kShards; ++s) {
    IndexShard& shard = index_.shard(s);
    MutexLock lock(shard.mutex);
    bytes += shard.size_bytes();
  }
  return bytes;
}

bool RowStore::has_excess() const {
  for (size_t t = 0; t + 1 < tiers_.size(); ++t) {
    if (excess_rows(t) != 0) return true;
  }
  return false;
}

void RowStore::read_settled(std::span<const int64_t> keys, RowBatch& rows) const {
  const Epochs::Guard guard = epochs_.enter();
  rows.clear();
  rows.resize(keys.size());
  IndexReader reader(index_);
  const BatchPtr batch = start_batch();
  std::vector<size_t> pending(keys.size());
  std::iota(pending.begin(), pending.end(), size_t{0});
  while (!pending.empty()) {
    batch->start(tiers_);
    for (const size_t i : pending) batch->add(keys[i], reader.find(keys[i]), i);
    batch->read(tiers_);
    pending.clear();
    for (size_t k = 0; k < batch->size(); ++k) {
      const size_t i = batch->found(k).tag;
      const RowRef at = batch->found(k).hit.ref;
      RowHeader header = batch->header(k);
      tiers_.tier(at.tier()).update_rank(at.slot(), header);
      if (!batch->is_valid(k)) {
        pending.push_back(i);
      } else if (batch->is_damaged(k)) {
        rows.header(i).key = keys[i];
        rows.add_damaged(i, batch->damage(k));
      } else {
        rows.header(i) = header;
        std::copy_n(batch->row(k), layout_.row_floats(), rows.row(i));
      }
    }
  }
}

void RowStore::remove(std::span<const int64_t> keys) {
  write_wanted_on_device(*this, keys);
  const PageVector<uint32_t> order = in_order_of_shards(keys.size(), [&keys](size_t i) { return keys[i]; });
  Transaction removal(*this, keys.size());
  for (size_t first = 0; first < order.size();) {
    const int number = embstore::shard_of_key(keys[order[first]]);
    IndexShard& shard = index_.shard(number);
    MutexLock lock(shard.mutex);
    for (; first < order.size(); ++first) {
      const int64_t key = keys[order[first]];
      if (embstore::shard_of_key(key) != number) break;
      if (const IndexEntry entry = shard.entry(key)) removal.remove(shard, entry, key);
    }
  }
}

}  // namespace embstore
