#include "update/gathered_update.h"

#include <algorithm>
#include <bit>

#include "access/phase.h"
#include "errors/error.h"
#include "memory/page_vector.h"
#include "platform/prefetch.h"

namespace embstore {
namespace {

constexpr size_t kKeysABlock = 16;
constexpr size_t kKeysFetchedAhead = 12;

// Rows that look-ups read, by key.
class ReadsByKey {
 public:
  explicit ReadsByKey(const std::vector<ServedBatch>& batches) {
    size_t rows = 0;
    for (const ServedBatch& batch : batches) rows += batch.lower.size();
    table_.resize(rows == 0 ? 0 : std::bit_ceil(2 * rows));
    for (const ServedBatch& batch : batches) {
      for (size_t i = 0; i < batch.lower.size(); ++i) {
        Entry& entry = at(batch.lower.wanted(i).hash, batch.lower.wanted(i).key);
        entry = {&batch, i};  // the newest counts
      }
    }
  }
  struct Entry {
    const ServedBatch* batch = nullptr;
    size_t row = 0;
  };
  bool empty() const { return table_.empty(); }
  // Empty where the key wasn't read. REQUIRES: not empty().
  Entry& at(KeyHash hash, int64_t key) {
    for (size_t i = hash;; ++i) {
      Entry& entry = table_[i & (table_.size() - 1)];
      if (entry.batch == nullptr || entry.batch->lower.wanted(entry.row).key == key) return entry;
    }
  }

 private:
  PageVector<Entry> table_;
};

}  // namespace

GatheredUpdate::GatheredUpdate(const UpdateParts& parts, const GradientBatch& batch, Mover& mover,
                               RecentReads& reads)
    : parts_(parts),
      batch_(batch),
      mover_(mover),
      reads_(reads),
      first_tier_(parts.store.tiers().first()),
      seats_(batch.keys().size()),
      insertion_(parts.store, /*most_departures=*/0),
      pool_claim_(parts.store.cache()),
      staged_(mover.take_spare_batch()) {}

GatheredUpdate::~GatheredUpdate() {
  if (!is_committed_) {
    for (int s = 0; s < kShards; ++s) {
      if (batch_.shard(s).empty()) continue;
      IndexShard& shard = parts_.store.shard(s);
      MutexLock lock(shard.mutex);
      undo_shard(shard, s);
    }
  }
  mover_.recycle(std::move(staged_));
  // What other threads' look-ups read, their updates will want.
  for (size_t i = 0; i < earlier_reads_.size(); ++i) {
    if (is_read_of_use_[i]) {
      mover_.recycle(std::move(earlier_reads_[i]));
      continue;
    }
    for (ServedBatch& gone : reads_.keep(std::move(earlier_reads_[i]))) mover_.recycle(std::move(gone));
  }
}

void GatheredUpdate::pin(size_t key, const IndexEntry& entry) {
  Seat& seat = seats_[key];
  seat.entry = entry;
  seat.at = entry.ref();
  seat.where = Where::kSeated;
  first_tier_.ranks().pin(seat.at.slot());
  const InclusiveCache* const cache = parts_.store.cache();
  pool_claims_needed_ += cache != nullptr && cache->update_needs_claim(seat.at.slot());
}

void GatheredUpdate::find_again(const IndexShard& shard, int number) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  for (size_t i = 0; i < keys.size(); ++i) {
    Seat& seat = seats_[first + i];
    if (seat.where == Where::kSeated) seat.entry = shard.entry(keys[i].hash, keys[i].key);
  }
  layouts_[static_cast<size_t>(number)] = shard.layout();
}

// --- Preparing

bool GatheredUpdate::prepare(uint64_t& new_rows) {
  for (int s = 0; s < kShards; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    find_shard(shard, s);
  }
  uint64_t below = 0;
  new_rows = 0;
  for (const Seat& seat : seats_) {
    below += seat.where == Where::kBelow;
    new_rows += seat.where == Where::kAbsent;
  }
  if (below + new_rows == 0) return claim_of_pool();
  if (!insertion_.try_reserve_rows(new_rows)) return false;
  if (below != 0) stage();
  SlotClaim claim = mover_.claim(below + new_rows);
  for (int s = 0; s < kShards && new_rows != 0; ++s) {
    const std::span<const KeyGradient> keys = batch_.shard(s);
    const auto seats = std::span(seats_).subspan(keys.empty() ? 0 : first_key(s), keys.size());
    const auto absent = static_cast<uint64_t>(std::count_if(
        seats.begin(), seats.end(), [](const Seat& seat) { return seat.where == Where::kAbsent; }));
    if (absent == 0) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    rooms_[static_cast<size_t>(s)] = shard.reserve_room(absent);
  }
  for (;;) {
    const size_t left = seat(claim);
    if (!damaged_.empty()) throw DamagedRowsError(std::move(damaged_), first_damage_);
    if (pool_is_full_) return false;
    if (left == 0) return claim_of_pool();
    stage();  // those that moved meanwhile
  }
}

size_t GatheredUpdate::seat(SlotClaim& claim) {
  const TierStack& tiers = parts_.store.tiers();
  Phase phase(first_tier_.meter());
  for (size_t t = 1; t < tiers.size(); ++t) {
    if (tiers.memory(t) != nullptr) phase.also_at(tiers.tier(t).meter());
  }
  size_t left = 0;
  for (int s = 0; s < kShards; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    left += seat_shard(shard, s, claim, phase);
  }
  return left;
}

bool GatheredUpdate::claim_of_pool() {
  return pool_claims_needed_ == 0 || pool_claim_.try_add(pool_claims_needed_);
}

void GatheredUpdate::find_shard(IndexShard& shard, int number) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  AdmissionFilter* const filter = parts_.filters.shard(number);
  const InclusiveCache* const cache = parts_.store.cache();
  const BucketArray& buckets = shard.buckets();
  layouts_[static_cast<size_t>(number)] = shard.layout();
  const auto fetch_bucket = [&](size_t i) {
    if (i >= keys.size()) return;
    prefetch_line(buckets.data() + home_bucket(keys[i].hash, buckets.count()));
    if (filter != nullptr) filter->prefetch(keys[i].hash);
  };
  uint64_t unheard = 0;  // keys that neither the index nor the filter knows
  for (size_t i = 0; i < kKeysABlock; ++i) fetch_bucket(i);
  for (size_t begin = 0; begin < keys.size(); begin += kKeysABlock) {
    const size_t end = std::min(begin + kKeysABlock, keys.size());
    for (size_t i = begin; i < end; ++i) {
      fetch_bucket(i + kKeysABlock);
      Seat& seat = seats_[first + i];
      seat.entry = shard.entry(keys[i].hash, keys[i].key);
      if (seat.entry) {
        seat.where = Where::kBelow;
        seat.at = seat.entry.ref();
        if (seat.entry.ref().tier() == 0) {
          first_tier_.ranks().prefetch(seat.entry.ref().slot());
          if (cache != nullptr) cache->prefetch(seat.entry.ref().slot());
        }
        continue;
      }
      seat.is_new = true;
      seat.where = Where::kAbsent;
      if (filter == nullptr) continue;
      const uint64_t count = filter->count(keys[i].key, keys[i].hash);
      unheard += count == 0;
      if (count + keys[i].occurrences < filter->threshold()) seat.where = Where::kWaits;
    }
    for (size_t i = begin; i < end; ++i) {
      Seat& seat = seats_[first + i];
      if (seat.entry && seat.entry.ref().tier() == 0) pin(first + i, seat.entry);
    }
  }
  if (filter != nullptr) filter->make_room(unheard);
}

void GatheredUpdate::stage() {
  copies_.assign(seats_.size(), {});
  for (ServedBatch& batch : reads_.take()) earlier_reads_.push_back(std::move(batch));
  is_read_of_use_.resize(earlier_reads_.size());
  ReadsByKey earlier(earlier_reads_);
  const TierStack& tiers = parts_.store.tiers();
  StagedRows& staged = staged_.lower;
  staged.start(tiers);
  IndexReader reader(parts_.store.index());
  const std::span<const KeyGradient> keys = batch_.keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (seats_[i].where != Where::kBelow) continue;
    const IndexHit hit = reader.find(keys[i].hash, keys[i].key);
    if (!hit.ref || hit.ref.tier() == 0) continue;
    if (!earlier.empty()) {
      const auto [batch, row] = earlier.at(keys[i].hash, keys[i].key);
      if (batch != nullptr && batch->lower.holds_at(row, hit.ref, tiers) && !batch->lower.is_damaged(row)) {
        copies_[i] = {&batch->lower, row};
        is_read_of_use_[static_cast<size_t>(batch - earlier_reads_.data())] = true;
        continue;
      }
    }
    if (tiers.memory(hit.ref.tier()) != nullptr) continue;  // read where it is, when it comes up
    staged.add(keys[i].key, keys[i].hash, hit, i);
  }
  staged.read(tiers);
  for (size_t row = 0; row < staged.size(); ++row) copies_[staged.wanted(row).tag] = {&staged, row};
}

size_t GatheredUpdate::seat_shard(IndexShard& shard, int number, SlotClaim& claim, Phase& phase) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  const auto is_seated = [&](size_t i) {
    const Where where = seats_[first + i].where;
    return where == Where::kSeated || where == Where::kWaits;
  };
  size_t unseated = 0;
  for (size_t i = 0; i < keys.size(); ++i) unseated += !is_seated(i);
  if (unseated == 0) return 0;

  const AdmissionFilter* const filter = parts_.filters.shard(number);
  const BucketArray& buckets = shard.buckets();
  FirstTierSlots slots(claim, unseated);
  Transaction rise(parts_.store, unseated);
  floats_.resize(parts_.store.layout().row_floats());
  size_t left = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kKeysFetchedAhead < keys.size() && !is_seated(i + kKeysFetchedAhead)) {
      prefetch_line(buckets.data() + home_bucket(keys[i + kKeysFetchedAhead].hash, buckets.count()));
      fetch_source(first + i + kKeysFetchedAhead);
      if (slots.left() > 0) first_tier_.prefetch(slots.peek(kKeysFetchedAhead / 2));
    }
    if (is_seated(i)) continue;
    IndexEntry entry = shard.entry(keys[i].hash, keys[i].key);
    if (!entry) {
      const Slot slot = slots.next();
      const uint64_t earlier = filter == nullptr ? 0 : filter->count(keys[i].key, keys[i].hash);
      first_tier_.start(slot, keys[i].key, parts_.initial.of(keys[i].key), parts_.slot_values, earlier);
      first_tier_.count_row(phase, Access::kStore, slot);
      entry = insertion_.insert(shard, keys[i].hash, keys[i].key, RowRef(0, slot),
                                rooms_[static_cast<size_t>(number)]);
      pin(first + i, entry);
    } else if (entry.ref().tier() == 0 || bring_up(shard, first + i, entry, rise, slots, phase)) {
      pin(first + i, entry);
    } else {
      seats_[first + i].where = Where::kBelow;
      seats_[first + i].at = entry.ref();
      ++left;
    }
  }
  if (layouts_[static_cast<size_t>(number)] != shard.layout()) find_again(shard, number);
  mover_.note_promoted(rise.moved_rows());
  return left;
}

void GatheredUpdate::fetch_source(size_t key) const {
  if (!copies_.empty() && copies_[key].rows != nullptr) {
    copies_[key].rows->prefetch(copies_[key].row);
  } else if (seats_[key].where == Where::kBelow) {
    const MemoryTier* const memory = parts_.store.tiers().memory(seats_[key].at.tier());
    if (memory != nullptr) memory->rows().prefetch(seats_[key].at.slot());
  }
}

bool GatheredUpdate::bring_up(IndexShard& shard, size_t key, const IndexEntry& entry, Transaction& rise,
                              FirstTierSlots& slots, Phase& phase) {
  const RowRef from = entry.ref();
  const int64_t id = batch_.keys()[key].key;
  RowHeader header;
  const float* floats = nullptr;
  if (const MemoryTier* const memory = parts_.store.tiers().memory(from.tier())) {
    header = memory->header(from.slot(), id);
    memory->rows().copy_floats(from.slot(), floats_.size(), floats_.data());
    memory->count_row(phase, Access::kLoad, from.slot());
    floats = floats_.data();
  } else {
    const Copy copy = copies_.empty() ? Copy{} : copies_[key];
    if (copy.rows == nullptr || !copy.rows->holds_at(copy.row, from, parts_.store.tiers())) return false;
    if (copy.rows->is_damaged(copy.row)) {
      if (damaged_.empty()) first_damage_ = copy.rows->damage(copy.row);
      damaged_.push_back(id);
      return false;
    }
    header = copy.rows->header(copy.row);
    floats = copy.rows->row(copy.row);
  }
  if (!parts_.store.may_come_up(from, InclusiveCache::For::kUpdate)) {
    pool_is_full_ = true;
    return false;
  }
  const Slot slot = slots.next();
  first_tier_.put(slot, header, floats);
  first_tier_.count_row(phase, Access::kStore, slot);
  rise.move(shard, entry, id, RowRef(0, slot));
  return true;
}

// --- Undoing

void GatheredUpdate::undo_shard(IndexShard& shard, int number) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const size_t first = first_key(number);
  size_t seated = 0;
  for (size_t i = 0; i < keys.size(); ++i) seated += seats_[first + i].where == Where::kSeated;
  if (seated == 0) return;
  Transaction removal(parts_.store, seated);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Seat& seat = seats_[first + i];
    if (seat.where != Where::kSeated) continue;
    first_tier_.ranks().unpin(seat.at.slot());
    // A row that no update has seen goes again, unless another batch has it pinned too.
    if (first_tier_.ranks().pins(seat.at.slot()) != 0 ||
        first_tier_.rows().meta(seat.at.slot()).version != RowMeta::kNeverUpdated) {
      continue;
    }
    removal.remove(shard, shard.entry(keys[i].hash, keys[i].key), keys[i].key);
  }
}

// --- Committing

void GatheredUpdate::commit(const UpdateTime& time) noexcept {
  is_committed_ = true;
  Phase phase(first_tier_.meter());
  visit_shards_of(batch_, [&](int number) {
    IndexShard& shard = parts_.store.shard(number);
    MutexLock lock(shard.mutex);
    update_shard(shard, number, time, phase);
    if (parts_.filters.any()) count_waiting(shard, number, time);
  });
  first_tier_.count_rows(phase, Access::kUpdate, updated_rows_);
}

void GatheredUpdate::update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const std::span<Seat> seats = std::span(seats_).subspan(first_key(number), keys.size());
  RowArray& rows = first_tier_.rows();
  SlotRanks& ranks = first_tier_.ranks();
  if (layouts_[static_cast<size_t>(number)] != shard.layout()) find_again(shard, number);
  if (InclusiveCache* const cache = parts_.store.cache()) {
    InclusiveCache::Changes changes(*cache);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kKeysFetchedAhead < keys.size() && seats[i + kKeysFetchedAhead].where == Where::kSeated) {
        cache->prefetch(seats[i + kKeysFetchedAhead].at.slot());
      }
      if (seats[i].where != Where::kSeated) continue;
      if (changes.will_change(seats[i].at.slot(), keys[i].key)) pool_claim_.pass_on();
    }
  }
  std::array<RowUpdate, kKeysABlock> updates;
  std::array<Slot, kKeysABlock> slots;
  size_t count = 0;
  const auto update = [&] {
    parts_.optimizer.update(std::span(updates).first(count), parts_.store.layout(), time.context);
    updated_rows_ += count;
    if (phase.wants_places()) [[unlikely]] {
      first_tier_.touch_rows(phase, Access::kUpdate, count, parts_.store.layout().row_bytes(),
                             [&slots](size_t i) { return slots[i]; });
    }
    count = 0;
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kKeysFetchedAhead < keys.size() && seats[i + kKeysFetchedAhead].where == Where::kSeated) {
      const Seat& ahead = seats[i + kKeysFetchedAhead];
      prefetch_line(ahead.entry.bucket);
      first_tier_.prefetch(ahead.at.slot());
    }
    const Seat& seat = seats[i];
    if (seat.where != Where::kSeated) continue;
    const Slot slot = seat.at.slot();
    RowMeta& meta = rows.meta(slot);
    meta.count(keys[i].occurrences, time.context.global_step, time.save_span);
    ranks.count_update_and_unpin(slot, meta.frequency, time.first_stamp + keys[i].last_position);
    slots[count] = slot;
    updates[count++] = {&seat.entry.bucket->guard, rows.row(slot), keys[i].gradient};
    if (count == kKeysABlock) update();
  }
  update();
}

// Two batches that bring a key over its threshold together may both have expected it to wait. Then it has its row
// with the next.
void GatheredUpdate::count_waiting(IndexShard& shard, int number, const UpdateTime& time) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const std::span<const Seat> seats = std::span(seats_).subspan(first_key(number), keys.size());
  AdmissionFilter& filter = *parts_.filters.shard(number);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!seats[i].is_new) continue;
    // Another batch has given it a row meanwhile.
    if (seats[i].where == Where::kWaits && shard.entry(keys[i].hash, keys[i].key)) continue;
    filter.add(keys[i].key, keys[i].hash, keys[i].occurrences, time.context.global_step);
    if (seats[i].where == Where::kSeated) filter.remove(keys[i].key, keys[i].hash);
  }
}

}  // namespace embstore
