#include "store/write_back.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "errors/error.h"
#include "store/transaction.h"

namespace embstore {
namespace {

void find_wanted(const RowStore& store, std::span<const RowRef> rows, BatchInFlight& batch) {
  const InclusiveCache& cache = *store.cache();
  IndexReader reader(store.index());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + IndexReader::kBucketsFetchedAhead < rows.size()) {
      reader.prefetch(cache.key(rows[i + IndexReader::kBucketsFetchedAhead]));
    }
    if (!cache.is_wanted(rows[i])) continue;  // a thread that changed it has written it meanwhile
    const int64_t key = cache.key(rows[i]);
    const IndexHit hit = reader.find(key);
    if (hit.ref == rows[i]) batch.add(key, hit);
  }
  batch.order_by_shards();
}

// Throws an Error if the read found damaged rows. All rows in a GPU's memory may be lost.
void check_whole(const RowStore& store, const BatchInFlight& batch) {
  for (uint32_t t = 0; t < store.cache()->pool_tier(); ++t) {
    const RowBatch& rows = batch.rows_of(t);
    if (rows.damaged().empty()) continue;
    store.tiers().tier(t).check_not_lost();
    std::vector<int64_t> keys;
    for (const auto& [position, reason] : rows.damaged()) keys.push_back(rows.places()[position].key);
    throw DamagedRowsError(std::move(keys), rows.damaged().begin()->second);
  }
}

}  // namespace

void write_wanted(RowStore& store, std::span<const RowRef> rows) {
  InclusiveCache& cache = *store.cache();
  const Epochs::Guard guard = store.epochs().enter();
  const BatchPtr batch = store.start_batch();
  find_wanted(store, rows, *batch);
  batch->read(store.tiers());
  check_whole(store, *batch);
  std::array<std::optional<RowCopies>, RowRef::kMaxTiers> copies;  // by the tier that has the rows
  for (uint32_t t = 0; t < cache.pool_tier(); ++t) {
    if (!batch->rows_of(t).places().empty()) copies[t].emplace(store, cache.pool_tier(), batch->rows_of(t));
  }
  InclusiveCache::WritePhase phase(cache);
  for (size_t first = 0; first < batch->size();) {
    const int number = shard_of_key(batch->found(first).key);
    IndexShard& shard = store.shard(number);
    MutexLock lock(shard.mutex);
    uint64_t written = 0;
    for (; first < batch->size() && shard_of_key(batch->found(first).key) == number; ++first) {
      const BatchInFlight::Found& found = batch->found(first);
      const IndexEntry entry = shard.entry(found.key);
      const RowRef at = found.hit.ref;
      if (!entry || entry.ref() != at || !cache.is_wanted(at)) continue;
      const bool is_as_read = entry.bucket == found.hit.bucket && batch->is_valid(first);
      // No thread changes a row in place if the host can't address it.
      if (is_as_read || (!cache.is_addressable(at) && batch->is_valid_at(first, at, store.tiers()))) {
        cache.note_written(at, copies[at.tier()]->place(found.row).slot());
      } else if (cache.is_addressable(at)) {
        // The row, or a neighbour in the index, was being changed while it was copied.
        cache.write_wanted(at, found.key, phase);
        ++written;
      }
    }
    if (written == 0) continue;
    cache.pool().fence();
    cache.note_fenced(written);
  }
}

void write_wanted_on_device(RowStore& store, std::span<const int64_t> keys) {
  const InclusiveCache* const cache = store.cache();
  if (cache == nullptr || cache->wanted_on_device() == 0) return;
  std::vector<RowRef> rows;
  {
    const Epochs::Guard guard = store.epochs().enter();
    IndexReader reader(store.index());
    for (const int64_t key : keys) {
      const RowRef at = reader.place_of(key);
      if (at && at.tier() < cache->pool_tier() && !cache->is_addressable(at)) rows.push_back(at);
    }
  }
  for (;;) {
    std::erase_if(rows, [cache](RowRef at) { return !cache->is_wanted(at); });
    if (rows.empty()) return;
    write_wanted(store, std::span(rows).first(std::min(rows.size(), kRowsWrittenAtOnce)));
  }
}

}  // namespace embstore
