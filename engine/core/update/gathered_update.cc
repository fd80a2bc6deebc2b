#include "update/gathered_update.h"

#include <array>

#include "access/phase.h"
#include "platform/prefetch.h"

namespace embstore {

GatheredUpdate::GatheredUpdate(const UpdateParts& parts, const GradientBatch& batch, Mover& mover,
                               RecentReads& reads, StepClaims* claims)
    : parts_(parts),
      batch_(batch),
      first_tier_(parts.store.tiers().first()),
      rows_(parts, batch, mover, reads, claims) {}

bool GatheredUpdate::prepare(uint64_t& new_rows) { return rows_.gather(new_rows); }

void GatheredUpdate::commit(const UpdateTime& time) noexcept {
  Phase phase(first_tier_.meter());
  visit_shards_of(batch_, [&](int number) {
    IndexShard& shard = parts_.store.shard(number);
    MutexLock lock(shard.mutex);
    update_shard(shard, number, time, phase);
    if (parts_.filters.any()) count_waiting(shard, number, time);
  });
  first_tier_.count_rows(phase, Access::kUpdate, updated_rows_);
  rows_.were_updated();
}

void GatheredUpdate::update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  RowArray& rows = first_tier_.rows();
  SlotRanks& ranks = first_tier_.ranks();
  rows_.find_moved_entries(shard, number);
  const std::span<const GatheredRows::Seat> seats = rows_.seats(number);
  if (InclusiveCache* const cache = parts_.store.cache()) {
    InclusiveCache::Changes changes(*cache);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + GatheredRows::kKeysFetchedAhead < keys.size() &&
          seats[i + GatheredRows::kKeysFetchedAhead].is_seated()) {
        cache->prefetch(seats[i + GatheredRows::kKeysFetchedAhead].at);
      }
      if (!seats[i].is_seated()) continue;
      if (changes.will_change(seats[i].at, keys[i].key)) rows_.change_claim().pass_on();
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
    if (i + GatheredRows::kKeysFetchedAhead < keys.size() &&
        seats[i + GatheredRows::kKeysFetchedAhead].is_seated()) {
      const GatheredRows::Seat& ahead = seats[i + GatheredRows::kKeysFetchedAhead];
      prefetch_line(ahead.entry.bucket);
      first_tier_.prefetch(ahead.at.slot());
    }
    const GatheredRows::Seat& seat = seats[i];
    if (!seat.is_seated()) continue;
    const Slot slot = seat.at.slot();
    if (shard.save != nullptr) [[unlikely]]
      shard.save->will_change(first_tier_, slot, keys[i].key, keys[i].hash);
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
  const std::span<const GatheredRows::Seat> seats = rows_.seats(number);
  AdmissionFilter& filter = *parts_.filters.shard(number);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!seats[i].is_new) continue;
    // Another batch has given it a row meanwhile.
    if (seats[i].where == GatheredRows::Where::kWaits && shard.entry(keys[i].hash, keys[i].key)) continue;
    filter.add(keys[i].key, keys[i].hash, keys[i].occurrences, time.context.global_step);
    if (seats[i].is_seated()) filter.remove(keys[i].key, keys[i].hash);
  }
}

}  // namespace embstore
