#include "movement/promotion.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "store/rise.h"
#include "store/shard_save.h"
#include "threads/shared_work.h"

namespace embstore {
namespace {

constexpr size_t kRanksFetchedAhead = 16;
constexpr size_t kRowsFetchedAhead = 8;
constexpr size_t kCountsFetchedAhead = 16;
constexpr size_t kRowsUnderMutex = 512;
constexpr size_t kWaitingAtOnce = 2048;
constexpr uint64_t kMinPartRising = 4;            // at least one row of this many
constexpr size_t kMinRowsCountedTogether = 8192;  // counting fewer takes no longer than waking a thread

constexpr auto accesses_of(const BatchInFlight& batch) {
  return [&batch](uint64_t tag) { return std::optional(batch.accesses(tag)); };
}

template <class T>
void append(const PageVector<T>& rows, PageVector<T>& to) {
  to.insert(to.end(), rows.begin(), rows.end());
}

}  // namespace

void Promotion::count(std::span<const BatchPtr> batches) {
  while (has_too_many_waiting() && raise_some_waiting()) {
  }
  bring_up_missed(std::exchange(uncounted_, {}), may_wait_);
  PageVector<RowToRaise> missed;
  // Counts all hits before any row moves, so that no row goes down that was just accessed.
  for (const BatchPtr& batch : batches) count_hits(*batch, missed);
  for (const BatchPtr& batch : batches) {
    // Needed if there is a tier in between, to which one access may bring the row.
    if (store_.tiers().size() > 2) batch->share_last_times();
    const BatchInFlight* const one = batch.get();
    note_rise({&one, 1}, promote(*batch, missed, accesses_of(*batch), may_wait_));
  }
  note_last_accesses(batches, missed);
  bring_up_missed(std::move(missed), may_wait_);
}

bool Promotion::can_count_without_moves() const {
  const size_t first = store_.tiers().tier_of_level(0);
  // Otherwise rows come up without being counted before.
  const bool is_full = store_.rows(first) >= store_.tiers().capacity_rows(first);
  return is_full && uncounted_.empty() && !has_too_many_waiting() && !store_.is_being_saved();
}

bool Promotion::can_count_without_moves(const BatchInFlight& batch) const {
  for (size_t t = store_.tiers().tier_of_level(0); t < store_.tiers().size(); ++t) {
    if (!batch.rows_of(t).places().empty() && !store_.tiers().tier(t).can_set_ranks()) return false;
  }
  return true;
}

void Promotion::count_without_moves(std::span<const BatchPtr> batches) {
  PageVector<RowToRaise> missed;
  std::vector<const BatchInFlight*> in_flight;
  for (const BatchPtr& batch : batches) {
    count_hits(*batch, missed);
    batch->order_by_shards();
    in_flight.push_back(batch.get());
  }
  count_batches_in_place(
      in_flight, [](const BatchInFlight& batch, uint64_t tag) { return batch.accesses(tag); }, missed);
  note_last_accesses(batches, missed);
  add_uncounted(missed);
}

void Promotion::take_in_without_moves(std::span<const RowToRaise> rows) {
  const Epochs::Guard guard = store_.epochs().enter();
  IndexReader reader(store_.index());
  const BatchPtr batch = store_.start_batch();
  PageVector<RowToRaise> missed;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kRanksFetchedAhead < rows.size()) reader.prefetch(rows[i + kRanksFetchedAhead].key);
    const IndexHit hit = reader.find(rows[i].key);
    if (!hit.ref || store_.tiers().level_of(hit.ref.tier()) == 0) continue;  // the row is up already
    if (store_.tiers().memory(hit.ref.tier()) == nullptr) {
      missed.push_back(rows[i]);
    } else {
      batch->add(rows[i].key, hit, i);
    }
  }
  batch->order_by_shards();
  const BatchInFlight* const all = batch.get();
  count_batches_in_place(
      {&all, 1}, [rows](const BatchInFlight&, uint64_t tag) { return *rows[tag].served; }, missed);
  add_uncounted(missed);
}

template <class ServedBy>
void Promotion::count_batches_in_place(std::span<const BatchInFlight* const> batches,
                                       const ServedBy& served_by, PageVector<RowToRaise>& missed) {
  const Floors floors = floors_above(batches, Moves::kLater);
  size_t rows = 0;
  for (const BatchInFlight* batch : batches) rows += batch->size();
  const uint64_t from_files = count_shards(
      rows, missed,
      [&](size_t shard, ShardCounts& counted) {
        for (const BatchInFlight* batch : batches) {
          const auto served_by_tag = [&](uint64_t tag) { return std::optional(served_by(*batch, tag)); };
          count_in_place(*batch, shard, floors, served_by_tag, may_wait_, counted);
          for (PageVector<uint32_t>& rising : counted.rising) {
            for (const uint32_t i : rising) {
              const BatchInFlight::Found& found = batch->found(i);
              counted.missed.push_back({found.key, served_by(*batch, found.tag)});
            }
            rising.clear();
          }
        }
      },
      [](const Rising&) {});
  note_rise(batches, from_files);
  if (has_many_waiting()) start_raising_waiting();
}

void Promotion::note_last_accesses(std::span<const BatchPtr> batches, PageVector<RowToRaise>& missed) {
  if (missed.empty()) return;
  std::unordered_map<int64_t, uint64_t> last;
  for (const RowToRaise& row : missed) {
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
  for (RowToRaise& row : missed) row.served->stamp = last[row.key];
}

void Promotion::note_rise(std::span<const BatchInFlight* const> batches, uint64_t rows) {
  uint64_t all = 0;
  for (const BatchInFlight* batch : batches) all += batch->rows_outside_memory(store_.tiers());
  if (all != 0) should_read_whole_rows_.store(kMinPartRising * rows >= all, std::memory_order_relaxed);
}

void Promotion::start_raising_waiting() {
  if (!raising_.empty()) return;
  raising_ = std::exchange(waiting_, {});
  std::sort(raising_.begin(), raising_.end(),
            [](const Waiting& a, const Waiting& b) { return a.rank < b.rank; });
}

bool Promotion::raise_some_waiting() {
  start_raising_waiting();
  if (raising_.empty()) return false;
  // The highest first: rows that they displace needn't come up. A row that was accessed again waits again,
  // with its new rank.
  const std::optional<Rank> least = min_floor();
  PageVector<RowToRaise> rows;
  for (; !raising_.empty() && rows.size() < kWaitingAtOnce; raising_.pop_back()) {
    if (least && raising_.back().rank < *least) {
      raising_.clear();
      break;
    }
    rows.push_back({raising_.back().key, ServedAccesses{.stamp = raising_.back().rank.stamp, .count = 0}});
  }
  if (raising_.empty()) raising_.shrink_to_fit();
  bring_up_missed(std::move(rows), MayWait::kNone);
  return true;
}

std::optional<Rank> Promotion::min_floor() const {
  std::optional<Rank> least;
  for (size_t t = store_.tiers().tier_of_level(0); t + 1 < store_.tiers().size(); ++t) {
    const std::optional<Rank> floor = floor_of_(t, Moves::kLater);
    if (!floor) return std::nullopt;
    if (!least || *floor < *least) least = floor;
  }
  return least;
}

void Promotion::bring_up(std::span<const int64_t> keys) {
  PageVector<RowToRaise> rows;
  for (const int64_t key : keys) rows.push_back({key, std::nullopt});
  bring_up_missed(std::move(rows), MayWait::kNone);
}

void Promotion::count_hits(const BatchInFlight& batch, PageVector<RowToRaise>& missed) {
  SlotRanks& ranks = store_.tiers().first().ranks();
  const auto is_hit = [](RowRef ref) { return ref && ref.tier() == 0; };
  const bool is_being_saved = store_.is_being_saved();  // no save begins meanwhile
  // The last access first: if a key occurs several times, only that one has to set the time.
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
  IndexShard& shard = store_.shard_of_key(key);
  const MutexLock lock(shard.mutex);
  const IndexEntry entry = shard.entry(key);
  if (!entry || entry.ref() != RowRef(0, slot)) return false;
  if (shard.save != nullptr) {
    shard.save->reserve(1);
    shard.save->prepare_change(first_tier, slot, key);
    shard.save->give_back(1);
  }
  return first_tier.ranks().count_served(slot, key, accesses);
}

void Promotion::bring_up_missed(PageVector<RowToRaise> missed, MayWait may_wait) {
  if (missed.empty()) return;
  const BatchPtr batch = store_.start_batch();
  PageVector<RowToRaise> coming;
  while (!missed.empty()) {
    const Epochs::Guard guard = store_.epochs().enter();
    IndexReader reader(store_.index());
    batch->start(store_.tiers());
    coming.swap(missed);
    for (size_t n = 0; n < coming.size(); ++n) {
      if (n + kRanksFetchedAhead < coming.size()) reader.prefetch(coming[n + kRanksFetchedAhead].key);
      const auto& [key, served] = coming[n];
      const IndexHit hit = reader.find(key);
      if (!hit.ref) continue;
      if (served && hit.ref.tier() == 0) {
        count_served(hit.ref.slot(), key, *served);
      } else if (served || !store_.tiers().are_same_level(0, hit.ref.tier())) {
        batch->add(key, hit, n);
      }
    }
    batch->read_to_raise(store_.tiers());
    missed.clear();
    // Rows that changed while they were read come once more.
    promote(*batch, missed, [&](uint64_t tag) { return coming[tag].served; }, may_wait);
  }
}

template <class ServedBy>
uint64_t Promotion::promote(BatchInFlight& batch, PageVector<RowToRaise>& missed, const ServedBy& served_by,
                            MayWait may_wait) {
  batch.order_by_shards();
  const BatchInFlight* const all = &batch;
  const Floors floors = floors_above({&all, 1}, Moves::kNow);
  const bool all_rise = !floors[store_.tiers().tier_of_level(0)];
  // Few rows are counted and raised shard by shard, so that what was touched to count a row is still in the
  // cache when it comes up.
  return count_shards(
      all_rise ? 0 : batch.size(), missed,
      [&](size_t shard, ShardCounts& counted) {
        count_in_place(batch, shard, floors, served_by, may_wait, counted);
      },
      [&](const Rising& rising) {
        for (size_t to = 0; to < store_.tiers().size(); ++to) {
          const size_t max_rows = std::max<size_t>(1, store_.tiers().headroom_rows(to) / 2);
          std::span<const uint32_t> rows(rising[to]);
          for (; !rows.empty(); rows = rows.subspan(std::min(max_rows, rows.size()))) {
            promote_rows(to, batch, rows.first(std::min(max_rows, rows.size())), missed, served_by);
          }
        }
      });
}

template <class Count, class Raise>
uint64_t Promotion::count_shards(size_t rows, PageVector<RowToRaise>& missed, const Count& count,
                                 const Raise& raise) {
  uint64_t from_files = 0;
  const auto take = [&](const ShardCounts& counted) {
    append(counted.waiting, waiting_);
    append(counted.missed, missed);
    from_files += counted.from_files;
    raise(counted.rising);
  };
  if (rows < kMinRowsCountedTogether) {
    for (size_t shard = 0; shard < kShards; ++shard) {
      ShardCounts counted;
      count(shard, counted);
      take(counted);
    }
    return from_files;
  }
  std::vector<ShardCounts> counted(kShards);
  for_each_piece(kShards, HelpingThreads::max_threads(), [&](size_t shard) { count(shard, counted[shard]); });
  for (const ShardCounts& result : counted) take(result);
  return from_files;
}

Promotion::Floors Promotion::floors_above(std::span<const BatchInFlight* const> batches, Moves moves) const {
  Floors floors;
  const size_t first_level = store_.tiers().tier_of_level(0);
  size_t deepest = 0;
  for (size_t t = first_level; t < store_.tiers().size(); ++t) {
    for (const BatchInFlight* batch : batches) {
      if (!batch->rows_of(t).places().empty()) deepest = t;
    }
  }
  for (size_t t = first_level; t < deepest; ++t) floors[t] = floor_of_(t, moves);
  return floors;
}

template <class ServedBy>
void Promotion::count_in_place(const BatchInFlight& batch, size_t number, const Floors& floors,
                               const ServedBy& served_by, MayWait may_wait, ShardCounts& result) const {
  const auto [first, end] = batch.rows_of_shard(number);
  if (first == end) return;
  MemoryPhase phase(store_.tiers());
  const Epochs::Guard guard = store_.epochs().enter();
  const IndexReader reader(store_.index());
  IndexShard& shard = store_.shard(static_cast<int>(number));
  const bool all_rise = !floors[store_.tiers().tier_of_level(0)];
  for (size_t i = first; i < end;) {
    const MutexLock lock(shard.mutex);
    for (const size_t pause = std::min(i + kRowsUnderMutex, end); i < pause; ++i) {
      const BatchInFlight::Found& found = batch.found(i);
      const std::optional<ServedAccesses> served = served_by(found.tag);
      std::optional<size_t> to = 0;
      if (!all_rise && served) {
        if (i + kCountsFetchedAhead < end) {
          const BatchInFlight::Found& ahead = batch.found(i + kCountsFetchedAhead);
          reader.prefetch(ahead.key);
          store_.tiers().tier(ahead.hit.ref.tier()).prefetch_rank(ahead.hit.ref.slot());
        }
        to = count_or_raise(shard, batch, i, *served, floors, may_wait, phase, result.waiting);
        if (!to) continue;
      }
      const bool is_in_memory = store_.tiers().memory(found.hit.ref.tier()) != nullptr;
      result.from_files += !is_in_memory;
      if (is_in_memory || batch.is_whole(i)) {
        result.rising[*to].push_back(static_cast<uint32_t>(i));
      } else {
        result.missed.push_back({found.key, served});
      }
    }
  }
}

std::optional<size_t> Promotion::count_or_raise(IndexShard& shard, const BatchInFlight& batch, size_t i,
                                                const ServedAccesses& served, const Floors& floors,
                                                MayWait may_wait, Phase& phase,
                                                PageVector<Waiting>& waiting) const {
  const BatchInFlight::Found& found = batch.found(i);
  const IndexEntry entry = shard.entry(found.key);
  // A save wants the row as it was: the code that moves it up keeps its image.
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
    if (!batch.is_valid_at(i, at, store_.tiers()) || batch.is_damaged(i)) return 0;
    header = batch.header(i);
    tier.update_rank(at.slot(), header);
  }
  header.served += served.count;
  header.stamp = std::max(header.stamp, served.stamp);
  const Rank rank = Rank::of(CacheStrategy::kLfu, header.frequency + header.served, header.stamp);
  size_t to = store_.tiers().tier_of_level(0);
  while (to < at.tier() && floors[to] && rank < *floors[to]) ++to;
  const bool stays = to == at.tier();
  const bool is_tie = !stays && floors[to] && rank.count == floors[to]->count;
  const bool waits = !stays && (may_wait == MayWait::kAll || (may_wait == MayWait::kTies && is_tie));
  if ((stays || waits) && tier.try_set_rank(at.slot(), header)) {
    if (waits) waiting.push_back({found.key, rank});
    if (memory != nullptr) memory->count_header(phase, Access::kStore, at.slot());
    return std::nullopt;
  }
  return entry_tier(stays ? to - 1 : to);
}

template <class ServedBy>
void Promotion::promote_rows(size_t to, const BatchInFlight& batch, std::span<const uint32_t> rows,
                             PageVector<RowToRaise>& missed, const ServedBy& served_by) {
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
  IndexShard& shard = store_.shard_of_key(batch.found(rows.front()).key);
  MutexLock lock(shard.mutex);
  if (shard.save != nullptr) {
    shard.save->reserve(rows.size());
    shard.save->give_back(rows.size());  // no other thread reserves while the mutex is held
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    const size_t i = rows[n];
    if (n + kRowsFetchedAhead < rows.size()) {
      const size_t next = rows[n + kRowsFetchedAhead];
      const BatchInFlight::Found& ahead = batch.found(next);
      reader.prefetch(ahead.key);
      tier.prefetch(rise.slots().peek(kRowsFetchedAhead));
      rise.fetch(ahead.hit.ref, {&batch, next});
    }
    const BatchInFlight::Found& found = batch.found(i);
    const std::optional<ServedAccesses> served = served_by(found.tag);
    const IndexEntry entry = shard.entry(found.key);
    if (!entry) continue;  // removed
    const size_t at = entry.ref().tier();
    if (!served && store_.tiers().are_same_level(0, at)) continue;
    if (at == 0) {
      if (shard.save != nullptr) {
        shard.save->prepare_change(first_tier, entry.ref().slot(), found.key);
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
