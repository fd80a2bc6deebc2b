#include "store/transaction.h"

#include <algorithm>

#include "errors/error.h"
#include "store/shard_save.h"

namespace embstore {

Transaction::Transaction(RowStore& store, size_t max_departures, PoolClaim* places)
    : store_(store), pool_claim_(store.cache(), places) {
  departures_.reserve(max_departures);
}

Transaction::~Transaction() {
  RowCounts& counts = store_.counts_;
  for (size_t t = 0; t < arrivals_.size(); ++t) {
    if (arrivals_[t] != 0) counts.add(t, static_cast<int64_t>(arrivals_[t]));
  }
  counts.give_back(reserved_ + removed_);
  // Rows are erased last, and tier by tier.
  constexpr size_t kPlacesAtOnce = 256;
  std::array<Place, kPlacesAtOnce> places;
  for (uint32_t t = 0; t < store_.tiers_.size(); ++t) {
    size_t count = 0;
    const auto erase = [&] {
      if (count != 0) store_.tiers_.tier(t).erase(std::span(places).first(count));
      count = 0;
    };
    for (const Departure& departure : departures_) {
      if (departure.tier != t) continue;
      places[count++] = departure.place;
      if (count == kPlacesAtOnce) erase();
    }
    erase();
  }
}

bool Transaction::try_reserve_rows(uint64_t count, size_t t) {
  if (const log::Checkpoints* const kept = store_.tiers_.checkpoints()) kept->check_not_awaiting_restore();
  if (!try_reserve_placed_rows(count)) return false;
  const InclusiveCache* const cache = store_.cache();
  if (cache == nullptr || t >= cache->tier_below() || pool_claim_.try_add(count)) return true;
  reserved_ -= count;
  store_.counts_.give_back(count);
  return false;
}

bool Transaction::try_reserve_placed_rows(uint64_t count) {
  if (!store_.counts_.try_reserve(count)) return false;
  reserved_ += count;
  return true;
}

IndexEntry Transaction::insert(IndexShard& shard, int64_t key, RowRef to, IndexShard::Room& room) {
  --reserved_;
  ++arrivals_[to.tier()];
  if (InclusiveCache* const cache = store_.cache(); cache != nullptr && cache->note_insert(to))
    pool_claim_.pass_on();
  if (shard.save != nullptr) shard.save->note_insert(key);
  return shard.insert(key, to, room);
}

void Transaction::move(IndexShard& shard, const IndexEntry& entry, int64_t key, RowRef to) {
  const RowRef from = entry.ref();
  InclusiveCache* const cache = store_.cache();
  const bool stays_as_copy = cache != nullptr && cache->note_move(key, from, to);
  shard.set_ref(entry, to);
  ++arrivals_[to.tier()];
  ++moved_;
  if (stays_as_copy) {
    store_.counts_.add(from.tier(), -1);
  } else {
    depart(key, from);
  }
}

void Transaction::remove(IndexShard& shard, const IndexEntry& entry, int64_t key) {
  const RowRef from = entry.ref();
  if (InclusiveCache* const cache = store_.cache()) cache->note_remove(key, from);
  shard.erase(entry);
  ++removed_;
  depart(key, from);
}

void Transaction::depart(int64_t key, RowRef from) {
  store_.counts_.add(from.tier(), -1);
  const Place place{key, from.slot()};
  if (departures_.size() < departures_.capacity()) {
    departures_.push_back({from.tier(), place});
  } else {
    store_.tiers_.tier(from.tier()).erase({&place, 1});
  }
}

RowCopies::RowCopies(RowStore& store, size_t t, const RowBatch& rows)
    : store_(store), tier_(static_cast<uint32_t>(t)), slots_(rows.size()), is_placed_(rows.size()) {
  unplaced_.reserve(rows.size());  // while it may still fail
  store_.tiers().tier(t).write(rows, slots_);
  for (size_t i = 0; i < rows.size(); ++i) unplaced_.push_back({rows.header(i).key, slots_[i]});
}

RowCopies::~RowCopies() {
  size_t count = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!is_placed_[i]) unplaced_[count++] = unplaced_[i];
  }
  if (count != 0) store_.tiers().tier(tier_).erase(std::span(unplaced_).first(count));
}

MemoryTierSlots::MemoryTierSlots(SlotClaim& claim, size_t count) : claim_(claim), slots_(count) {
  claim_.take(slots_);
}

MemoryTierSlots::~MemoryTierSlots() {
  if (left() != 0) claim_.untake(std::span(slots_).subspan(used_));
}

}  // namespace embstore
