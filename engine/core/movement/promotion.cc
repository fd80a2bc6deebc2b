#include "movement/promotion.h"

#include <algorithm>

#include "access/phase.h"
#include "platform/prefetch.h"
#include "store/shard_order.h"

namespace embstore {
namespace {

constexpr size_t kRanksFetchedAhead = 16;
constexpr size_t kRowsFetchedAhead = 8;

}  // namespace

void Promotion::count(std::span<const ServedBatch> batches) {
  PageVector<Accesses> missed;
  // All of what is known before any row moves, so that none goes down that was accessed.
  for (const ServedBatch& batch : batches) count_hits(batch, missed);
  for (const ServedBatch& batch : batches) count_lower(batch, missed);
  count_missed(std::move(missed));
}

void Promotion::count_hits(const ServedBatch& batch, PageVector<Accesses>& missed) {
  SlotRanks& ranks = store_.tiers().first().ranks();
  const auto is_hit = [](RowRef ref) { return ref && ref.tier() == 0; };
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (i + kRanksFetchedAhead < batch.ids.size() && is_hit(batch.refs[i + kRanksFetchedAhead])) {
      ranks.prefetch(batch.refs[i + kRanksFetchedAhead].slot());
    }
    if (!is_hit(batch.refs[i])) continue;
    const Slot slot = batch.refs[i].slot();
    const uint64_t stamp = batch.first_stamp + i;
    if (!ranks.count_served(slot, batch.ids[i], 1, stamp)) missed.push_back({batch.ids[i], 1, stamp});
  }
}

void Promotion::count_lower(const ServedBatch& batch, PageVector<Accesses>& missed) {
  const StagedRows& staged = batch.lower;
  PageVector<StagedAccesses> accesses;
  accesses.reserve(staged.size());
  for (const uint32_t i :
       in_order_of_shards(staged.size(), [&staged](size_t row) { return staged.wanted(row).hash; })) {
    accesses.push_back({i, 1, batch.first_stamp + staged.wanted(i).tag});
  }
  promote(staged, accesses, missed);
}

void Promotion::count_missed(PageVector<Accesses> missed) {
  StagedRows staged(store_.layout());
  while (!missed.empty()) {
    const Epochs::Guard guard = store_.epochs().enter();
    IndexReader reader(store_.index());
    staged.start(store_.tiers());
    for (size_t n = 0; n < missed.size(); ++n) {
      if (n + kRanksFetchedAhead < missed.size())
        reader.prefetch(hash_key(missed[n + kRanksFetchedAhead].key));
      const auto& [key, count, stamp] = missed[n];
      const KeyHash hash = hash_key(key);
      const IndexHit hit = reader.find(hash, key);
      if (!hit.ref) continue;
      if (hit.ref.tier() == 0) {
        store_.tiers().first().ranks().count_served(hit.ref.slot(), key, count, stamp);
      } else {
        staged.add(key, hash, hit, n);
      }
    }
    staged.read(store_.tiers());
    PageVector<StagedAccesses> accesses;
    accesses.reserve(staged.size());
    for (const uint32_t i :
         in_order_of_shards(staged.size(), [&staged](size_t row) { return staged.wanted(row).hash; })) {
      const Accesses& row = missed[staged.wanted(i).tag];
      accesses.push_back({i, row.count, row.stamp});
    }
    missed.clear();
    promote(staged, accesses, missed);  // those that changed while they were read come once more
  }
}

void Promotion::promote(const StagedRows& staged, std::span<const StagedAccesses> accesses,
                        PageVector<Accesses>& missed) {
  const TierStack& tiers = store_.tiers();
  Phase phase(tiers.first().meter());
  for (size_t t = 1; t < tiers.size(); ++t) {
    if (tiers.memory(t) != nullptr) phase.also_at(tiers.tier(t).meter());
  }
  const auto shard_at = [&](size_t n) { return shard_of(staged.wanted(accesses[n].row).hash); };
  for (size_t first = 0; first < accesses.size();) {
    size_t end = first;
    while (end < accesses.size() && end - first < most_rows_at_once_ && shard_at(end) == shard_at(first))
      ++end;
    promote_shard(store_.shard(shard_at(first)), staged, accesses.subspan(first, end - first), missed, phase);
    first = end;
  }
}

void Promotion::promote_shard(IndexShard& shard, const StagedRows& staged,
                              std::span<const StagedAccesses> accesses, PageVector<Accesses>& missed,
                              Phase& phase) {
  MemoryTier& first_tier = store_.tiers().first();
  SlotClaim claim = claim_slots_(accesses.size());
  FirstTierSlots slots(claim, accesses.size());
  Transaction rise(store_, accesses.size());
  floats_.resize(store_.layout().row_floats());
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  MutexLock lock(shard.mutex);
  for (size_t n = 0; n < accesses.size(); ++n) {
    if (n + kRowsFetchedAhead < accesses.size()) {
      const uint32_t ahead = accesses[n + kRowsFetchedAhead].row;
      const RowRef ref = staged.wanted(ahead).hit.ref;
      reader.prefetch(staged.wanted(ahead).hash);
      first_tier.prefetch(slots.peek(kRowsFetchedAhead));
      if (const MemoryTier* const memory = store_.tiers().memory(ref.tier())) {
        memory->prefetch(ref.slot());
      } else {
        staged.prefetch(ahead);
      }
    }
    const auto& [row, count, stamp] = accesses[n];
    const StagedRows::Wanted& wanted = staged.wanted(row);
    const IndexEntry entry = shard.entry(wanted.hash, wanted.key);
    if (!entry) continue;  // removed
    const RowRef from = entry.ref();
    if (from.tier() == 0) {
      first_tier.ranks().count_served(from.slot(), wanted.key, count, stamp);
      continue;
    }
    RowHeader header;
    const float* floats = nullptr;
    if (const MemoryTier* const memory = store_.tiers().memory(from.tier())) {
      header = memory->header(from.slot(), wanted.key);
      memory->rows().copy_floats(from.slot(), floats_.size(), floats_.data());
      memory->count_row(phase, Access::kLoad, from.slot());
      floats = floats_.data();
    } else if (!staged.holds_at(row, from, store_.tiers())) {
      missed.push_back({wanted.key, count, stamp});
      continue;
    } else if (staged.is_damaged(row)) {
      continue;  // whoever wants it is told
    } else {
      header = staged.header(row);
      floats = staged.row(row);
    }
    if (!store_.may_come_up(from, InclusiveCache::For::kLookUp)) continue;  // it's served from where it is
    // Counted at once, so that a row that has just come isn't taken for colder than it is.
    header.served += count;
    header.stamp = std::max(header.stamp, stamp);
    const Slot slot = slots.next();
    first_tier.put(slot, header, floats);
    first_tier.count_row(phase, Access::kStore, slot);
    rise.move(shard, entry, wanted.key, RowRef(0, slot));
  }
  note_promoted(rise.moved_rows());
}

}  // namespace embstore
