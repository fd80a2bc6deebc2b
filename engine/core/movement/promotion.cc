#include "movement/promotion.h"

#include "store/rise.h"
#include "store/shard_save.h"

namespace embstore {
namespace {

constexpr size_t kRanksFetchedAhead = 16;
constexpr size_t kRowsFetchedAhead = 8;

}  // namespace

void Promotion::count(std::span<const BatchPtr> batches) {
  PageVector<RowToCome> missed;
  // All of what is known before any row moves, so that none goes down that was accessed.
  for (const BatchPtr& batch : batches) count_hits(*batch, missed);
  for (const BatchPtr& batch : batches) {
    promote(*batch, missed, [&](uint64_t tag) { return std::optional(batch->accesses(tag)); });
  }
  bring_up_missed(std::move(missed));
}

void Promotion::bring_up(std::span<const int64_t> keys) {
  PageVector<RowToCome> rows;
  for (const int64_t key : keys) rows.push_back({key, std::nullopt});
  bring_up_missed(std::move(rows));
}

void Promotion::count_hits(const BatchInFlight& batch, PageVector<RowToCome>& missed) {
  SlotRanks& ranks = store_.tiers().first().ranks();
  const auto is_hit = [](RowRef ref) { return ref && ref.tier() == 0; };
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (i + kRanksFetchedAhead < batch.ids.size() && is_hit(batch.refs[i + kRanksFetchedAhead])) {
      ranks.prefetch(batch.refs[i + kRanksFetchedAhead].slot());
    }
    if (!is_hit(batch.refs[i])) continue;
    const ServedAccesses accesses = batch.accesses(i);
    if (!count_served(batch.refs[i].slot(), batch.ids[i], accesses)) {
      missed.push_back({batch.ids[i], accesses});
    }
  }
}

bool Promotion::count_served(Slot slot, int64_t key, const ServedAccesses& accesses) {
  MemoryTier& first_tier = store_.tiers().first();
  if (!store_.is_being_saved()) [[likely]]
    return first_tier.ranks().count_served(slot, key, accesses);
  const KeyHash hash = hash_key(key);
  IndexShard& shard = store_.shard_of_hash(hash);
  const MutexLock lock(shard.mutex);
  const IndexEntry entry = shard.entry(hash, key);
  if (!entry || entry.ref() != RowRef(0, slot)) return false;
  if (shard.save != nullptr) {
    shard.save->reserve(1);
    shard.save->will_change(first_tier, slot, key, hash);
    shard.save->give_back(1);
  }
  return first_tier.ranks().count_served(slot, key, accesses);
}

void Promotion::bring_up_missed(PageVector<RowToCome> missed) {
  if (missed.empty()) return;
  const BatchPtr batch = store_.start_batch();
  PageVector<RowToCome> coming;
  while (!missed.empty()) {
    const Epochs::Guard guard = store_.epochs().enter();
    IndexReader reader(store_.index());
    batch->start(store_.tiers());
    coming.swap(missed);
    for (size_t n = 0; n < coming.size(); ++n) {
      if (n + kRanksFetchedAhead < coming.size())
        reader.prefetch(hash_key(coming[n + kRanksFetchedAhead].key));
      const auto& [key, served] = coming[n];
      const IndexHit hit = reader.find(hash_key(key), key);
      if (!hit.ref) continue;
      if (served && hit.ref.tier() == 0) {
        count_served(hit.ref.slot(), key, *served);
      } else if (served || !store_.tiers().are_one_level(0, hit.ref.tier())) {
        batch->add(key, hit, n);
      }
    }
    batch->read(store_.tiers());
    missed.clear();
    // Those that changed while they were read come once more.
    promote(*batch, missed, [&](uint64_t tag) { return coming[tag].served; });
  }
}

template <class ServedBy>
void Promotion::promote(BatchInFlight& batch, PageVector<RowToCome>& missed, const ServedBy& served_by) {
  batch.order_by_shards();
  MemoryPhase phase(store_.tiers());
  for (size_t first = 0; first < batch.size();) {
    const int number = shard_of(batch.found(first).hash());
    size_t end = first;
    while (end < batch.size() && end - first < most_rows_at_once_ &&
           shard_of(batch.found(end).hash()) == number)
      ++end;
    promote_shard(store_.shard(number), batch, first, end, missed, served_by, phase);
    first = end;
  }
}

template <class ServedBy>
void Promotion::promote_shard(IndexShard& shard, const BatchInFlight& batch, size_t first, size_t end,
                              PageVector<RowToCome>& missed, const ServedBy& served_by, Phase& phase) {
  MemoryTier& first_tier = store_.tiers().first();
  SlotClaim claim = claim_slots_(end - first);
  Rise rise(store_, claim, end - first, phase);
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  MutexLock lock(shard.mutex);
  if (shard.save != nullptr) {
    shard.save->reserve(end - first);
    shard.save->give_back(end - first);  // nobody else reserves while the mutex is held
  }
  for (size_t i = first; i < end; ++i) {
    if (i + kRowsFetchedAhead < end) {
      const BatchInFlight::Found& ahead = batch.found(i + kRowsFetchedAhead);
      reader.prefetch(ahead.hash());
      first_tier.prefetch(rise.slots().peek(kRowsFetchedAhead));
      rise.fetch(ahead.hit.ref, {&batch, i + kRowsFetchedAhead});
    }
    const BatchInFlight::Found& found = batch.found(i);
    const std::optional<ServedAccesses> served = served_by(found.tag);
    const IndexEntry entry = shard.entry(found.hash(), found.key);
    if (!entry) continue;  // removed
    if (!served && store_.tiers().are_one_level(0, entry.ref().tier())) continue;
    if (entry.ref().tier() == 0) {
      if (shard.save != nullptr) {
        shard.save->will_change(first_tier, entry.ref().slot(), found.key, found.hash());
      }
      first_tier.ranks().count_served(entry.ref().slot(), found.key, *served);
    } else if (rise.bring_up(shard, entry, found.key, {&batch, i}, served) == Rise::Outcome::kToRead) {
      missed.push_back({found.key, served});
    }  // a row that is damaged, or has no room, is served from where it is
  }
  note_promoted(rise.promoted_rows());
}

}  // namespace embstore
