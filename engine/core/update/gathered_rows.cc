#include "update/gathered_rows.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"
#include "platform/prefetch.h"
#include "store/rise.h"

namespace embstore {

GatheredRows::GatheredRows(const UpdateParts& parts, const GradientBatch& batch, Mover& mover,
                           UpdateReads& reads, StepClaims* claims)
    : parts_(parts),
      batch_(batch),
      mover_(mover),
      claims_(claims),
      first_tier_(parts.store.tiers().first()),
      rows_(batch.keys().size()),
      insertion_(parts.store, /*max_departures=*/0, places_claimed()),
      change_claim_(parts.store.cache(), places_claimed()),
      image_room_(parts.store.index()),
      reads_(reads) {
  for (size_t t = 1; t < parts.store.tiers().size(); ++t) {
    may_rest_[t] = mover.can_update_in_place(t, /*nothing_moves=*/claims != nullptr);
  }
}

GatheredRows::~GatheredRows() {
  for (int s = 0; s < kShards && !is_committed_; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    undo_shard(shard, s);
  }
}

bool GatheredRows::gather(uint64_t& new_rows) {
  find();
  uint64_t below = 0;
  new_rows = 0;
  for (const Row& row : rows_) {
    below += row.state == State::kBelow;
    new_rows += row.state == State::kAbsent;
  }
  if (below + new_rows == 0) return change_claim_.try_add_noted();
  if (!insertion_.try_reserve_rows(new_rows)) return false;
  if (below != 0) stage();
  SlotClaim claim = claims_ != nullptr ? std::move(claims_->slots) : mover_.claim(below + new_rows);
  for (int s = 0; s < kShards && new_rows != 0; ++s) {
    const std::span<const KeyGradient> keys = batch_.shard(s);
    const auto rows = std::span(rows_).subspan(keys.empty() ? 0 : first_key(s), keys.size());
    const auto absent = static_cast<uint64_t>(
        std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.state == State::kAbsent; }));
    if (absent == 0) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    rooms_[static_cast<size_t>(s)] = shard.reserve_room(absent, keys.front().key);
  }
  for (;;) {
    const size_t left = place_rows(claim);
    if (!damaged_.empty()) throw DamagedRowsError(std::move(damaged_), first_damage_);
    if (pool_is_full_) return false;
    if (left == 0) return change_claim_.try_add_noted();
    stage();  // reads the rows that moved meanwhile
  }
}

// --- Finding rows

void GatheredRows::find() {
  MemoryPhase phase(parts_.store.tiers());
  for (int s = 0; s < kShards; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    image_room_.reserve(shard, s, batch_.shard(s).size());
    find_shard(shard, s, phase);
  }
  if (resting_ + waiting_ != 0) to_raise_.emplace_back().reserve(resting_ + waiting_);
}

void GatheredRows::find_shard(IndexShard& shard, int number, Phase& phase) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  AdmissionFilter* const filter = parts_.filters.shard(number);
  const InclusiveCache* const cache = parts_.store.cache();
  const BucketArray& buckets = shard.buckets();
  layouts_[static_cast<size_t>(number)] = shard.layout();
  const auto fetch_bucket = [&](size_t i) {
    if (i >= keys.size()) return;
    prefetch_line(buckets.home(keys[i].key));
    if (filter != nullptr) filter->prefetch(keys[i].hash);
  };
  uint64_t unknown_keys = 0;  // keys that neither the index nor the filter knows
  for (size_t i = 0; i < kKeysABlock; ++i) fetch_bucket(i);
  for (size_t begin = 0; begin < keys.size(); begin += kKeysABlock) {
    const size_t end = std::min(begin + kKeysABlock, keys.size());
    for (size_t i = begin; i < end; ++i) {
      fetch_bucket(i + kKeysABlock);
      Row& row = rows_[first + i];
      row.entry = shard.entry(keys[i].key);
      if (row.entry) {
        row.at = row.entry.ref();
        row.state = State::kBelow;
        if (row.at.tier() == 0) {
          first_tier_.ranks().prefetch(row.at.slot());
        } else if (may_rest_[row.at.tier()]) {
          parts_.store.tiers().memory(row.at.tier())->prefetch_rank(row.at.slot());
        } else {
          continue;
        }
        if (cache != nullptr) cache->prefetch(row.at);
        continue;
      }
      row.is_new = true;
      row.state = filter == nullptr ? State::kAbsent : state_by(*filter, keys[i], unknown_keys);
    }
    for (size_t i = begin; i < end; ++i) {
      Row& row = rows_[first + i];
      if (!row.entry) continue;
      if (row.at.tier() == 0) {
        row.is_new = filter != nullptr && is_provisional(row.at);
        if (row.is_new && state_by(*filter, keys[i], unknown_keys) == State::kWaits) {
          row.state = State::kWaits;
        } else {
          pin(first + i, row.entry);
        }
      } else if (may_rest_[row.at.tier()] && (claims_ != nullptr || stays_outranked(first + i))) {
        // In a step on a device all rows rest: the mover brings many up at once, later.
        rest(first + i, phase);
      }
    }
  }
  if (filter != nullptr) filter->make_room(unknown_keys);
}

GatheredRows::State GatheredRows::state_by(const AdmissionFilter& filter, const KeyGradient& key,
                                           uint64_t& unknown_keys) {
  const uint64_t count = filter.count(key.key, key.hash);
  unknown_keys += count == 0;
  if (filter.admits_after(count, key.occurrences)) return State::kAbsent;
  ++waiting_;
  return State::kWaits;
}

void GatheredRows::pin(size_t key, const IndexEntry& entry) {
  Row& row = rows_[key];
  row.entry = entry;
  row.at = entry.ref();
  row.state = State::kInFirstTier;
  row.is_pinned = true;
  first_tier_.ranks().pin(row.at.slot());
  change_claim_.note_change(row.at);
}

void GatheredRows::rest(size_t key, Phase& phase) {
  Row& row = rows_[key];
  row.state = State::kResting;
  MemoryTier& tier = *parts_.store.tiers().memory(row.at.tier());
  tier.count_header(phase, Access::kLoad, row.at.slot());  // for a row that comes up, this is counted then
  ++resting_;
  row.is_pinned = tier.is_ranked();
  if (row.is_pinned) tier.ranks().pin(row.at.slot());
  change_claim_.note_change(row.at);
}

bool GatheredRows::stays_outranked(size_t key) const {
  const RowRef at = rows_[key].at;
  const KeyGradient& gradient = batch_.keys()[key];
  const MemoryTier& tier = *parts_.store.tiers().memory(at.tier());
  const RowHeader header = tier.header(at.slot(), gradient.key);
  return header.frequency + header.served + gradient.occurrences < mover_.min_count_above(at.tier());
}

void GatheredRows::find_rows_of_waiting_keys(const IndexShard& shard, int number) {
  if (waiting_ == 0) return;
  const TierStack& tiers = parts_.store.tiers();
  const InclusiveCache* const cache = parts_.store.cache();
  const std::span<const KeyGradient> keys = batch_.shard(number);
  for (size_t i = 0; i < keys.size(); ++i) {
    Row& row = rows_[first_key(number) + i];
    if (row.state != State::kWaits) continue;
    const IndexEntry entry = shard.entry(keys[i].key);
    if (!entry || is_provisional(entry.ref())) continue;
    row.entry = entry;
    row.at = entry.ref();
    const bool may_change =
        tiers.memory(row.at.tier()) != nullptr && (cache == nullptr || !cache->update_needs_claim(row.at));
    // Otherwise the row has moved to a file meanwhile, and so has the key's state.
    row.state = may_change ? State::kResting : State::kBelow;
  }
}

void GatheredRows::find_moved_entries(const IndexShard& shard, int number) {
  const bool are_stale = layouts_[static_cast<size_t>(number)] != shard.layout();
  const bool may_have_moved = resting_ != 0 && claims_ == nullptr;
  if (!are_stale && !may_have_moved) return;
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const std::span<Row> rows = std::span(rows_).subspan(first_key(number), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kKeysFetchedAhead < keys.size()) prefetch_line(rows[i + kKeysFetchedAhead].entry.bucket);
    Row& row = rows[i];
    if (row.state == State::kResting || (are_stale && row.is_in_first_tier())) {
      row.entry = shard.entry(keys[i].key);
      row.at = row.entry.ref();
    }
  }
  layouts_[static_cast<size_t>(number)] = shard.layout();
}

void GatheredRows::note_updated(RowRef at, int64_t key, uint64_t count) {
  if (at.tier() == 0 || count < mover_.min_count_above(at.tier())) return;
  to_raise_.front().push_back({key, ServedAccesses{.stamp = 0, .count = 0}});
}

void GatheredRows::commit() {
  is_committed_ = true;
  if (!to_raise_.empty() && !to_raise_.front().empty()) mover_.queue_updated_below(std::move(to_raise_));
}

// --- Bringing rows up

void GatheredRows::stage() {
  copies_.assign(rows_.size(), {});
  reads_.take();
  if (!staged_) staged_ = parts_.store.start_batch();
  const TierStack& tiers = parts_.store.tiers();
  staged_->start(tiers);
  IndexReader reader(parts_.store.index());
  const std::span<const KeyGradient> keys = batch_.keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows_[i].state != State::kBelow) continue;
    const IndexHit hit = reader.find(keys[i].key);
    if (!hit.ref || hit.ref.tier() == 0) continue;
    copies_[i] = reads_.find(keys[i].hash, keys[i].key, hit.ref, tiers);
    if (copies_[i] || tiers.memory(hit.ref.tier()) != nullptr) continue;  // rows in memory are read in place
    copies_[i] = {staged_.get(), staged_->size()};
    staged_->add(keys[i].key, hit);
  }
  staged_->read(tiers);
}

size_t GatheredRows::place_rows(SlotClaim& claim) {
  MemoryPhase phase(parts_.store.tiers());
  size_t left = 0;
  for (int s = 0; s < kShards; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    left += place_shard(shard, s, claim, phase);
  }
  return left;
}

size_t GatheredRows::place_shard(IndexShard& shard, int number, SlotClaim& claim, Phase& phase) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  const auto is_placed = [&](size_t i) {
    const State state = rows_[first + i].state;
    return state != State::kAbsent && state != State::kBelow;
  };
  size_t unplaced = 0;
  for (size_t i = 0; i < keys.size(); ++i) unplaced += !is_placed(i);
  if (unplaced == 0) return 0;

  const AdmissionFilter* const filter = parts_.filters.shard(number);
  const BucketArray& buckets = shard.buckets();
  Rise rise(parts_.store, /*to=*/0, claim, unplaced, phase, places_claimed());
  MemoryTierSlots& slots = rise.slots();
  const auto fetch = [&](size_t i) {
    if (i >= keys.size() || is_placed(i)) return;
    prefetch_line(buckets.home(keys[i].key));
    if (rows_[first + i].state == State::kBelow) rise.fetch(rows_[first + i].at, copy_of(first + i));
    if (slots.left() > 0) first_tier_.prefetch(slots.peek(kKeysFetchedAhead / 2));
  };
  size_t left = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    fetch(i + kKeysFetchedAhead);
    if (is_placed(i)) continue;
    IndexEntry entry = shard.entry(keys[i].key);
    if (!entry) {
      const Slot slot = slots.next();
      const uint64_t earlier = filter == nullptr ? 0 : filter->count(keys[i].key, keys[i].hash);
      first_tier_.start(slot, keys[i].key, parts_.initial.row_of(keys[i].key), parts_.slot_values, earlier);
      first_tier_.count_row(phase, Access::kStore, slot);
      entry = insertion_.insert(shard, keys[i].key, RowRef(0, slot), rooms_[static_cast<size_t>(number)]);
      pin(first + i, entry);
    } else if (entry.ref().tier() == 0 || bring_up(shard, first + i, entry, rise)) {
      pin(first + i, entry);
    } else {
      rows_[first + i].state = State::kBelow;
      rows_[first + i].at = entry.ref();
      ++left;
    }
  }
  find_moved_entries(shard, number);
  mover_.note_promoted(rise.promoted_rows());
  return left;
}

bool GatheredRows::bring_up(IndexShard& shard, size_t key, const IndexEntry& entry, Rise& rise) {
  const int64_t id = batch_.keys()[key].key;
  const RowInFlight copy = copy_of(key);
  const Rise::Outcome outcome = rise.bring_up(shard, entry, id, copy, /*served=*/std::nullopt);
  if (outcome == Rise::Outcome::kNoRoom) pool_is_full_ = true;
  if (outcome == Rise::Outcome::kDamaged) {
    if (damaged_.empty()) first_damage_ = copy.batch->damage(copy.i);
    damaged_.push_back(id);
  }
  return outcome == Rise::Outcome::kUp;
}

// --- Undoing

void GatheredRows::undo_shard(IndexShard& shard, int number) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  find_moved_entries(shard, number);
  Transaction removal(parts_.store, /*max_departures=*/0);  // allocating room for departures could fail here
  for (size_t i = 0; i < keys.size(); ++i) {
    const Row& row = rows_[first + i];
    if (!row.is_pinned) continue;
    parts_.store.tiers().memory(row.at.tier())->ranks().unpin(row.at.slot());
    if (row.state != State::kInFirstTier) continue;
    // A row that was never updated is removed, unless another batch has pinned it.
    if (first_tier_.ranks().pins(row.at.slot()) != 0 ||
        first_tier_.rows().meta(row.at.slot()).version != RowMeta::kNeverUpdated) {
      continue;
    }
    removal.remove(shard, shard.entry(keys[i].key), keys[i].key);
  }
}

}  // namespace embstore
