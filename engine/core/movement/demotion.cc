#include "movement/demotion.h"

#include <algorithm>
#include <thread>

#include "access/phase.h"
#include "platform/prefetch.h"
#include "store/shard_order.h"

namespace embstore {

Demotion::Demotion(RowStore& store, CacheStrategy strategy, const PrefetchedRows& prefetched)
    : store_(store), strategy_(strategy), prefetched_(prefetched) {
  const TierStack& tiers = store.tiers();
  for (size_t t = 0; t + 1 < tiers.size(); ++t) {
    const bool is_hbm = tiers.hbm() != nullptr && t == tiers.tier_of_level(0);
    coldest_.emplace_back(*tiers.ranked(t), strategy, is_hbm ? &prefetched_ : nullptr);
  }
}

bool Demotion::step(uint64_t max_rows) {
  const TierStack& tiers = store_.tiers();
  // From the bottom, so that there is room below for what comes down.
  for (size_t t = tiers.size() - 1; t-- > 0;) {
    const uint64_t excess = store_.excess_rows(t);
    if (excess == 0) continue;
    uint64_t count = std::min(excess, max_rows);
    for (size_t below = t + 1; below <= lowest_below(t); ++below) {
      count = std::min(count, tiers.tier(below).free_places());
    }
    if (demote(t, count, Which::kExcess)) return true;
  }
  return false;
}

std::optional<Rank> Demotion::floor_of(size_t t) {
  if (store_.rows(t) < store_.tiers().capacity_rows(t)) return std::nullopt;
  return coldest_[t].lower_bound();
}

std::optional<Rank> Demotion::current_floor_of(size_t t) {
  if (store_.rows(t) < store_.tiers().capacity_rows(t)) return std::nullopt;
  return coldest_rank(t);
}

std::optional<Rank> Demotion::coldest_rank(size_t t) {
  if (!store_.tiers().ranked(t)->ranks_lag()) return coldest_[t].lower_bound();
  const std::vector<ColdestRows::Candidate>& coldest = coldest_[t].next(1);
  return coldest.empty() ? std::nullopt : std::optional(coldest.front().rank);
}

bool Demotion::make_room(size_t t, uint64_t count) {
  return demote(t, std::min({count, kRowsAtOnce, store_.rows(t)}), Which::kAny);
}

void Demotion::vacate_added_slots() {
  MemoryTier& tier = store_.tiers().first();
  SlotAllocator& slots = tier.slots();
  const uint64_t end = slots.first_never_taken();
  std::vector<float> floats(store_.layout().row_floats());
  Phase phase(tier.meter());
  for (uint64_t i = slots.first_slots(); i < end; ++i) {
    const Slot from = static_cast<Slot>(i);
    if (!tier.ranks().is_filled(from)) continue;
    if (!slots.try_claim(1)) return;
    SlotClaim claim(slots, 1);
    MemoryTierSlots to(claim, 1);
    if (to.peek(0) >= slots.first_slots()) return;  // it is an added slot, too
    const int64_t key = tier.key(from);
    Transaction shift(store_, 1);
    IndexShard& shard = store_.shard_of_key(key);
    MutexLock lock(shard.mutex);
    const IndexEntry entry = shard.entry(key);
    if (!entry || entry.ref() != RowRef(0, from) || tier.ranks().pins(from) != 0) continue;
    tier.rows().copy_floats(from, floats.size(), floats.data());
    const Slot slot = to.next();
    tier.put(slot, tier.header(from, key), floats.data());
    tier.count_row(phase, Access::kLoad, from);
    tier.count_row(phase, Access::kStore, slot);
    shift.move(shard, entry, key, RowRef(0, slot));
    coldest_[0].note_left(from);
  }
  tier.remove_added_slots();
}

uint64_t Demotion::rows_to_go(size_t t, Which which) const {
  return which == Which::kExcess ? store_.excess_rows(t) : store_.rows(t);
}

bool Demotion::demote(size_t t, uint64_t count, Which which) {
  if (count == 0) return false;
  const Epochs::Guard guard = store_.epochs().enter();
  const uint64_t pinned = choose(t, count, which);
  if (candidates_.empty()) {
    if (pinned != 0) return false;
    // The coldest rows were accessed since they were ranked: the next round finds colder ones.
    std::this_thread::yield();
    return rows_to_go(t, which) != 0;
  }
  for (size_t to = t + 1; to <= lowest_below(t); ++to) {
    const BatchPtr leaving = store_.start_batch();
    add_leaving(t, to, *leaving);
    if (leaving->empty()) continue;
    leaving->read(store_.tiers());
    if (!leaving->rows_of(t).damaged().empty()) {
      store_.tiers().tier(t).check_not_lost();
      note_damaged(t, leaving->rows_of(t));
    }
    const uint64_t moved = refer_to_copies(t, to, *leaving);
    if (!store_.tiers().are_same_level(t, to)) demoted_.fetch_add(moved, std::memory_order_relaxed);
  }
  return true;
}

void Demotion::note_damaged(size_t t, const RowBatch& rows) {
  const SlotRanks& ranks = store_.tiers().ranked(t)->ranks();
  // Forgets rows that have left their slots since.
  std::erase_if(unreadable_, [&](const Unreadable& known) {
    return known.tier == t && ranks.rank(known.row.slot, strategy_) != known.row.rank;
  });
  for (const auto& [position, reason] : rows.damaged()) {
    const Slot slot = rows.places()[position].slot;
    unreadable_.push_back({t, {ranks.rank(slot, strategy_), slot}});
  }
}

bool Demotion::is_unreadable(size_t t, const ColdestRows::Candidate& row) const {
  return std::any_of(unreadable_.begin(), unreadable_.end(), [&](const Unreadable& known) {
    return known.tier == t && known.row.slot == row.slot && known.row.rank == row.rank;
  });
}

size_t Demotion::lowest_below(size_t t) const {
  return std::min(t + (store_.tiers().are_same_level(t, t + 1) ? 2 : 1), store_.tiers().size() - 1);
}

std::optional<Demotion::Floor> Demotion::floor_below(size_t t) {
  if (lowest_below(t) == t + 1) return std::nullopt;
  const TierStack& tiers = store_.tiers();
  const uint64_t rows = store_.rows(t) + store_.rows(t + 1);
  const uint64_t capacity = tiers.capacity_rows(t) + tiers.capacity_rows(t + 1);
  if (rows <= capacity) return std::nullopt;
  const std::optional<Rank> coldest = coldest_rank(t + 1);
  return coldest ? std::optional(Floor{*coldest, rows - capacity}) : std::nullopt;
}

size_t Demotion::destination_of(size_t t, int64_t key, const Rank& rank, std::optional<Floor>& floor) const {
  if (!floor || floor->rows_too_many == 0 || !(rank < floor->rank) || prefetched_.contains(key)) return t + 1;
  --floor->rows_too_many;
  return t + 2;
}

uint64_t Demotion::choose(size_t t, uint64_t count, Which which) {
  const RankedTier& from = *store_.tiers().ranked(t);
  std::optional<Floor> floor = floor_below(t);
  IndexReader reader(store_.index());
  const std::vector<ColdestRows::Candidate>& coldest = coldest_[t].next(count + unreadable_.size());
  candidates_.clear();
  uint64_t turn = 0;
  // If all rows are prefetched, next() returns none: the rows beyond the capacity are about to be somewhere
  // else.
  uint64_t pinned = coldest.empty() && prefetched_.any() ? 1 : 0;
  Phase phase(store_.tiers().tier(t).meter());
  if (!from.keys_are_with_ranks()) phase.count(Access::kLoad, coldest.size(), sizeof(int64_t));
  for (size_t i = 0; i < coldest.size(); ++i) {
    if (i + 2 * IndexReader::kBucketsFetchedAhead < coldest.size()) {
      from.ranks().prefetch(coldest[i + 2 * IndexReader::kBucketsFetchedAhead].slot);
    }
    if (i + IndexReader::kBucketsFetchedAhead < coldest.size()) {
      reader.prefetch(from.key(coldest[i + IndexReader::kBucketsFetchedAhead].slot));
    }
    const auto& [rank, slot] = coldest[i];
    const int64_t key = from.key(slot);
    const size_t to = destination_of(t, key, rank, floor);  // for a row that stays, too: it keeps its turn
    if (from.ranks().pins(slot) != 0) {
      ++pinned;
      ++turn;
      continue;
    }
    if (!unreadable_.empty() && is_unreadable(t, coldest[i])) {
      ++pinned;  // it stays as if it were pinned
      continue;
    }
    const IndexHit hit = reader.find(key);
    if (hit.ref != RowRef(static_cast<uint32_t>(t), slot)) continue;
    // The row was accessed since it was ranked, and may still be the coldest: the next round will tell. An
    // access from here on changes the bucket.
    if (from.ranks().rank(slot, strategy_) != rank) {
      ++turn;
      continue;
    }
    candidates_.push_back({key, hit, rank, to, turn++});
  }
  // Keeps as many as are still beyond the capacity, pinned ones included: rows may have been promoted from
  // here since they were counted.
  const uint64_t to_go = rows_to_go(t, which);
  std::erase_if(candidates_, [to_go](const Candidate& row) { return row.turn >= to_go; });
  return pinned;
}

void Demotion::add_leaving(size_t t, size_t to, BatchInFlight& leaving) const {
  const InclusiveCache* const cache = store_.cache();
  const SlotRanks& ranks = store_.tiers().ranked(t)->ranks();
  IndexReader reader(store_.index());
  for (const uint32_t i :
       in_order_of_shards(candidates_.size(), [this](size_t row) { return candidates_[row].key; })) {
    const Candidate& row = candidates_[i];
    if (row.to != to) continue;
    IndexHit hit = row.hit;
    if (!hit.is_valid()) {  // neighbours in its bucket have moved to another tier
      hit = reader.find(row.key);
      if (hit.ref != row.hit.ref || ranks.rank(hit.ref.slot(), strategy_) != row.rank) continue;
    }
    if (cache != nullptr && cache->copy_of(hit.ref)) {
      leaving.add_unread(row.key, hit);
    } else {
      leaving.add(row.key, hit);
    }
  }
}

RowRef Demotion::place_below(const BatchInFlight::Found& row, const RowBatch& rows, RowCopies& copies) const {
  const RowRef from = row.hit.ref;
  if (InclusiveCache* const cache = store_.cache()) {
    if (const std::optional<RowRef> copy = cache->copy_of(from)) {
      cache->demote_to_copy(row.key, from, *copy);
      return *copy;
    }
  }
  const bool was_read = row.row != BatchInFlight::kUnread && !rows.is_damaged(row.row);
  return was_read ? copies.place(row.row) : RowRef();
}

uint64_t Demotion::refer_to_copies(size_t t, size_t to, const BatchInFlight& leaving) {
  const SlotRanks& ranks = store_.tiers().ranked(t)->ranks();
  const RowBatch& rows = leaving.rows_of(t);
  RowCopies copies(store_, to, rows);
  Transaction fall(store_, leaving.size());
  std::vector<IndexEntry> entries;
  entries.reserve(leaving.size());
  for (size_t first = 0; first < leaving.size();) {
    const int number = shard_of_key(leaving.found(first).key);
    IndexShard& shard = store_.shard(number);
    MutexLock lock(shard.mutex);
    // First finds which rows are still as they were copied, and then changes the index: its own changes would
    // look like those of other threads.
    entries.clear();
    size_t end = first;
    for (; end < leaving.size() && shard_of_key(leaving.found(end).key) == number; ++end) {
      if (end + IndexReader::kBucketsFetchedAhead < leaving.size()) {
        prefetch_line(leaving.found(end + IndexReader::kBucketsFetchedAhead).hit.bucket);
      }
      const BatchInFlight::Found& row = leaving.found(end);
      const IndexEntry entry = shard.entry(row.key);
      const bool is_pinned = ranks.pins(row.hit.ref.slot()) != 0;
      const bool unchanged = entry && entry.bucket == row.hit.bucket && leaving.is_valid(end) && !is_pinned;
      entries.push_back(unchanged ? entry : IndexEntry{});
    }
    for (size_t i = first; i < end; ++i) {
      const IndexEntry& entry = entries[i - first];
      if (!entry) continue;
      const BatchInFlight::Found& row = leaving.found(i);
      const RowRef place = place_below(row, rows, copies);
      if (!place) continue;
      fall.move(shard, entry, row.key, place);
      coldest_[t].note_left(row.hit.ref.slot());
    }
    first = end;
  }
  return fall.moved_rows();
}

}  // namespace embstore
