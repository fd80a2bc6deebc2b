#include "update/gathered_update.h"

#include <array>

#include "access/phase.h"
#include "platform/prefetch.h"

namespace embstore {

GatheredUpdate::GatheredUpdate(const UpdateParts& parts, const GradientBatch& batch, Mover& mover,
                               UpdateReads& reads, StepClaims* claims)
    : parts_(parts), batch_(batch), gathered_(parts, batch, mover, reads, claims) {}

bool GatheredUpdate::prepare(uint64_t& new_rows) {
  if (parts_.filters.any()) uncounted_.reserve(batch_);
  return gathered_.gather(new_rows);
}

void GatheredUpdate::commit(const UpdateTime& time) noexcept {
  const TierStack& tiers = parts_.store.tiers();
  MemoryPhase phase(tiers);
  visit_shards_of(batch_, [&](int number) {
    IndexShard& shard = parts_.store.shard(number);
    MutexLock lock(shard.mutex);
    update_shard(shard, number, time, phase);
    if (parts_.filters.any()) count_keys_without_row(number, time);
  });
  for (size_t t = 0; t < tiers.size(); ++t) {
    if (updated_rows_[t] != 0) tiers.memory(t)->count_rows(phase, Access::kUpdate, updated_rows_[t]);
  }
  gathered_.commit();
}

void GatheredUpdate::update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase) {
  constexpr size_t kAhead = GatheredRows::kKeysFetchedAhead;
  const TierStack& tiers = parts_.store.tiers();
  MemoryTier& first_tier = tiers.first();
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const AdmissionFilter* const filter = parts_.filters.shard(number);
  if (filter != nullptr) gathered_.find_rows_of_waiting_keys(shard, number);
  gathered_.find_moved_entries(shard, number);
  const std::span<const GatheredRows::Row> rows = gathered_.rows(number);
  if (InclusiveCache* const cache = parts_.store.cache()) {
    InclusiveCache::Changes changes(*cache);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size() && rows[i + kAhead].is_updated()) cache->prefetch(rows[i + kAhead].at);
      if (!rows[i].is_updated()) continue;
      if (changes.prepare_change(rows[i].at, keys[i].key)) gathered_.change_claim().pass_on();
    }
  }
  std::array<RowUpdate, kKeysABlock> updates;
  std::array<RowRef, kKeysABlock> places;
  size_t count = 0;
  const auto update = [&] {
    parts_.optimizer.update(std::span(updates).first(count), parts_.store.layout(), time.context);
    if (phase.wants_addresses()) [[unlikely]] {
      for (const RowRef at : std::span(places).first(count)) {
        tiers.memory(at.tier())->touch_rows(phase, Access::kUpdate, 1, parts_.store.layout().row_bytes(),
                                            [at](size_t) { return at.slot(); });
      }
    }
    count = 0;
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size() && rows[i + kAhead].is_updated()) {
      const GatheredRows::Row& ahead = rows[i + kAhead];
      prefetch_line(ahead.entry.bucket);
      tiers.memory(ahead.at.tier())->prefetch(ahead.at.slot());
      prefetch_row(keys[i + kAhead].gradient, static_cast<size_t>(parts_.store.layout().dim()));
    }
    const GatheredRows::Row& row = rows[i];
    if (!row.is_updated()) continue;
    const RowRef at = row.at;
    MemoryTier& tier = at.tier() == 0 ? first_tier : *tiers.memory(at.tier());
    if (shard.save != nullptr) [[unlikely]]
      shard.save->prepare_change(tier, at.slot(), keys[i].key);
    const uint64_t stamp = time.first_stamp + keys[i].last_position;
    if (row.is_in_first_tier()) {
      RowMeta& meta = tier.rows().meta(at.slot());
      // Other batches may have counted accesses of the waiting key since the row was prepared.
      if (filter != nullptr && row.is_new && meta.version == RowMeta::kNeverUpdated) [[unlikely]]
        meta = RowMeta::of(filter->count(keys[i].key, keys[i].hash), RowMeta::kNeverUpdated, /*save_span=*/0);
      meta.count(keys[i].occurrences, time.context.global_step, time.save_span);
      tier.ranks().count_update_and_unpin(at.slot(), meta.frequency, stamp);
    } else {
      const uint64_t accesses = tier.count_update(at.slot(), keys[i].key, keys[i].occurrences,
                                                  time.context.global_step, time.save_span, stamp);
      gathered_.note_updated(at, keys[i].key, accesses);
      if (row.is_pinned) tier.ranks().unpin(at.slot());
    }
    ++updated_rows_[at.tier()];
    places[count] = at;
    updates[count++] = {&row.entry.bucket->guard, tier.rows().row(at.slot()), keys[i].gradient};
    if (count == kKeysABlock) update();
  }
  update();
}

// If two batches together bring a key over its threshold, both may have let it wait; then the next batch
// gives it a row. And if one batch lets a key wait while another gives it a row, the filter's count is added
// to that row's frequency, or remains in the filter if the row is removed again.
void GatheredUpdate::count_keys_without_row(int number, const UpdateTime& time) {
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const std::span<const GatheredRows::Row> rows = gathered_.rows(number);
  AdmissionFilter& filter = *parts_.filters.shard(number);
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool waits = rows[i].state == GatheredRows::State::kWaits;
    if (!waits && !(rows[i].is_new && rows[i].is_in_first_tier())) continue;
    uncounted_.note(keys[i], filter.count(keys[i].key, keys[i].hash), rows[i].is_in_first_tier());
  }
  uncounted_.count(filter, time.context.global_step);
}

}  // namespace embstore
