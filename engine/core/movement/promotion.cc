#include "movement/promotion.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "store/rise.h"
#include "store/shard_save.h"

namespace embstore {
namespace {

constexpr size_t kRanksFetchedAhead = 16;
constexpr size_t kRowsFetchedAhead = 8;
constexpr size_t kCountsFetchedAhead = 16;
constexpr size_t kRowsUnderMutex = 512;
constexpr size_t kWaitingAtOnce = 2048;
constexpr uint64_t kLeastPartRising = 4;  // one of so many

}  // namespace

void Promotion::count(std::span<const BatchPtr> batches) {
  PageVector<RowToCome> missed;
  // All of what is known before any row moves, so that none goes down that was accessed.
  for (const BatchPtr& batch : batches) count_hits(*batch, missed);
  for (const BatchPtr& batch : batches) {
    const uint64_t rising = promote(
        *batch, missed, [&](uint64_t tag) { return std::optional(batch->accesses(tag)); }, Ties::kWait);
    note_rise(*batch, rising);
  }
  note_last_accesses(batches, missed);
  bring_up_missed(std::move(missed), Ties::kWait);
}

void Promotion::note_last_accesses(std::span<const BatchPtr> batches, PageVector<RowToCome>& missed) {
  if (missed.empty()) return;
  std::unordered_map<int64_t, uint64_t> last;
  for (const RowToCome& row : missed) {
    uint64_t& stamp = last[row.key];
    stamp = std::max(stamp, row.served->stamp);
  }
  for (const BatchPtr& batch : batches) {
    for (size_t i = 0; i < batch->size(); ++i) {
      const auto known = last.find(batch->found(i).key);
      if (known == last.end()) continue;
      known->second = std::max(known->second, batch->accesses(batch->found(i).tag).stamp);
    }
  }
  for (RowToCome& row : missed) row.served->stamp = last[row.key];
}

void Promotion::note_rise(const BatchInFlight& batch, uint64_t rows) {
  uint64_t all = 0;
  for (size_t t = 0; t < store_.tiers().size(); ++t) {
    if (store_.tiers().memory(t) == nullptr) all += batch.rows_of(t).places().size();
  }
  if (all != 0) many_rise_.store(kLeastPartRising * rows >= all, std::memory_order_relaxed);
}

bool Promotion::bring_up_some_that_wait() {
  if (waiting_.empty()) return false;
  // The newest, which rank highest, first: what they displace needn't come up.
  const auto count = static_cast<ptrdiff_t>(std::min(waiting_.size(), kWaitingAtOnce));
  PageVector<RowToCome> rows(waiting_.end() - count, waiting_.end());
  waiting_.resize(waiting_.size() - rows.size());
  if (waiting_.empty()) waiting_.shrink_to_fit();
  bring_up_missed(std::move(rows), Ties::kRise);
  return true;
}

void Promotion::bring_up(std::span<const int64_t> keys) {
  PageVector<RowToCome> rows;
  for (const int64_t key : keys) rows.push_back({key, std::nullopt});
  bring_up_missed(std::move(rows), Ties::kRise);
}

void Promotion::count_hits(const BatchInFlight& batch, PageVector<RowToCome>& missed) {
  SlotRanks& ranks = store_.tiers().first().ranks();
  const auto is_hit = [](RowRef ref) { return ref && ref.tier() == 0; };
  const bool is_being_saved = store_.is_being_saved();  // no save begins meanwhile
  // The last first: of a key that comes several times, only that has to set the time.
  for (size_t i = batch.ids.size(); i-- > 0;) {
    if (i >= kRanksFetchedAhead && is_hit(batch.refs[i - kRanksFetchedAhead])) {
      ranks.prefetch(batch.refs[i - kRanksFetchedAhead].slot());
    }
    if (!is_hit(batch.refs[i])) continue;
    const ServedAccesses accesses = batch.accesses(i);
    const Slot slot = batch.refs[i].slot();
    const bool is_counted = is_being_saved ? count_served(slot, batch.ids[i], accesses)
                                           : ranks.count_served(slot, batch.ids[i], accesses);
    if (!is_counted) missed.push_back({batch.ids[i], accesses});
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

void Promotion::bring_up_missed(PageVector<RowToCome> missed, Ties ties) {
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
    batch->read_to_come_up(store_.tiers());
    missed.clear();
    // Those that changed while they were read come once more.
    promote(*batch, missed, [&](uint64_t tag) { return coming[tag].served; }, ties);
  }
}

template <class ServedBy>
uint64_t Promotion::promote(BatchInFlight& batch, PageVector<RowToCome>& missed, const ServedBy& served_by,
                            Ties ties) {
  batch.order_by_shards();
  const Floors floors = floors_above(batch);
  Rising rising;
  uint64_t from_files = 0;
  // Shard by shard, so that what was touched to count a row is still in the cache when it comes up.
  for (size_t first = 0; first < batch.size();) {
    const int number = shard_of(batch.found(first).hash());
    size_t end = first;
    while (end < batch.size() && shard_of(batch.found(end).hash()) == number) ++end;
    for (PageVector<uint32_t>& rows : rising) rows.clear();
    from_files += count_in_place(batch, first, end, floors, rising, missed, served_by, ties);
    for (size_t to = 0; to < store_.tiers().size(); ++to) {
      const size_t most_rows = std::max<size_t>(1, store_.tiers().headroom_rows(to) / 2);
      std::span<const uint32_t> rows(rising[to]);
      for (; !rows.empty(); rows = rows.subspan(std::min(most_rows, rows.size()))) {
        promote_rows(to, batch, rows.first(std::min(most_rows, rows.size())), missed, served_by);
      }
    }
    first = end;
  }
  return from_files;
}

Promotion::Floors Promotion::floors_above(const BatchInFlight& batch) const {
  Floors floors;
  const size_t first_level = store_.tiers().tier_of_level(0);
  size_t deepest = 0;
  for (size_t t = first_level; t < store_.tiers().size(); ++t) {
    if (!batch.rows_of(t).places().empty()) deepest = t;
  }
  for (size_t t = first_level; t < deepest; ++t) floors[t] = floor_of_(t);
  return floors;
}

template <class ServedBy>
uint64_t Promotion::count_in_place(const BatchInFlight& batch, size_t first, size_t end, const Floors& floors,
                                   Rising& rising, PageVector<RowToCome>& missed, const ServedBy& served_by,
                                   Ties ties) {
  MemoryPhase phase(store_.tiers());
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  IndexShard& shard = store_.shard_of_hash(batch.found(first).hash());
  const bool all_rise = !floors[store_.tiers().tier_of_level(0)];
  uint64_t from_files = 0;
  for (size_t i = first; i < end;) {
    const MutexLock lock(shard.mutex);
    for (const size_t pause = std::min(i + kRowsUnderMutex, end); i < pause; ++i) {
      const BatchInFlight::Found& found = batch.found(i);
      const std::optional<ServedAccesses> served = served_by(found.tag);
      std::optional<size_t> to = 0;
      if (!all_rise && served) {
        if (i + kCountsFetchedAhead < end) {
          const BatchInFlight::Found& ahead = batch.found(i + kCountsFetchedAhead);
          reader.prefetch(ahead.hash());
          store_.tiers().tier(ahead.hit.ref.tier()).prefetch_rank(ahead.hit.ref.slot());
        }
        to = count_or_raise(shard, batch, i, *served, floors, ties, phase);
        if (!to) continue;
      }
      const bool is_in_memory = store_.tiers().memory(found.hit.ref.tier()) != nullptr;
      from_files += !is_in_memory;
      if (is_in_memory || batch.is_whole(i)) {
        rising[*to].push_back(static_cast<uint32_t>(i));
      } else {
        missed.push_back({found.key, served});
      }
    }
  }
  return from_files;
}

std::optional<size_t> Promotion::count_or_raise(IndexShard& shard, const BatchInFlight& batch, size_t i,
                                                const ServedAccesses& served, const Floors& floors, Ties ties,
                                                Phase& phase) {
  const BatchInFlight::Found& found = batch.found(i);
  const IndexEntry entry = shard.entry(found.hash(), found.key);
  // A save wants the row as it was: who moves it up keeps that.
  if (!entry || shard.save != nullptr) return 0;
  const RowRef at = entry.ref();
  if (store_.tiers().level_of(at.tier()) == 0) return 0;
  Tier& tier = store_.tiers().tier(at.tier());
  const MemoryTier* const memory = store_.tiers().memory(at.tier());
  RowHeader header;
  if (memory != nullptr) {
    header = memory->header(at.slot(), found.key);
    memory->count_header(phase, Access::kLoad, at.slot());
  } else {
    if (!batch.holds_at(i, at, store_.tiers()) || batch.is_damaged(i)) return 0;
    header = batch.header(i);
    tier.update_rank(at.slot(), header);
  }
  header.served += served.count;
  header.stamp = std::max(header.stamp, served.stamp);
  const Rank rank = Rank::of(CacheStrategy::kLfu, header.frequency + header.served, header.stamp);
  size_t to = store_.tiers().tier_of_level(0);
  while (to < at.tier() && floors[to] && rank < *floors[to]) ++to;
  const bool stays = to == at.tier();
  const bool may_wait =
      !stays && ties == Ties::kWait && floors[to] && rank.count == floors[to]->count && !do_many_wait();
  if ((stays || may_wait) && tier.try_set_rank(at.slot(), header)) {
    if (may_wait) waiting_.push_back({found.key, ServedAccesses{.stamp = header.stamp, .count = 0}});
    if (memory != nullptr) memory->count_header(phase, Access::kStore, at.slot());
    return std::nullopt;
  }
  return way_to(stays ? to - 1 : to);
}

template <class ServedBy>
void Promotion::promote_rows(size_t to, const BatchInFlight& batch, std::span<const uint32_t> rows,
                             PageVector<RowToCome>& missed, const ServedBy& served_by) {
  std::optional<SlotClaim> claim = claim_slots_(to, rows.size());
  if (!claim) {
    to = 0;
    claim = claim_slots_(to, rows.size());
  }
  MemoryTier& first_tier = store_.tiers().first();
  const MemoryTier& tier = *store_.tiers().memory(to);
  MemoryPhase phase(store_.tiers());
  Rise rise(store_, to, *claim, rows.size(), phase);
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  IndexShard& shard = store_.shard_of_hash(batch.found(rows.front()).hash());
  MutexLock lock(shard.mutex);
  if (shard.save != nullptr) {
    shard.save->reserve(rows.size());
    shard.save->give_back(rows.size());  // nobody else reserves while the mutex is held
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    const size_t i = rows[n];
    if (n + kRowsFetchedAhead < rows.size()) {
      const size_t next = rows[n + kRowsFetchedAhead];
      const BatchInFlight::Found& ahead = batch.found(next);
      reader.prefetch(ahead.hash());
      tier.prefetch(rise.slots().peek(kRowsFetchedAhead));
      rise.fetch(ahead.hit.ref, {&batch, next});
    }
    const BatchInFlight::Found& found = batch.found(i);
    const std::optional<ServedAccesses> served = served_by(found.tag);
    const IndexEntry entry = shard.entry(found.hash(), found.key);
    if (!entry) continue;  // removed
    const size_t at = entry.ref().tier();
    if (!served && store_.tiers().are_one_level(0, at)) continue;
    if (at == 0) {
      if (shard.save != nullptr) {
        shard.save->will_change(first_tier, entry.ref().slot(), found.key, found.hash());
      }
      first_tier.ranks().count_served(entry.ref().slot(), found.key, *served);
    } else if (at <= to ||
               rise.bring_up(shard, entry, found.key, {&batch, i}, served) == Rise::Outcome::kToRead) {
      missed.push_back({found.key, served});
    }  // a row that is damaged, or has no room, is served from where it is
  }
  note_promoted(rise.promoted_rows());
}

}  // namespace embstore
