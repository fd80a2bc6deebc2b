#include "update/resident_update.h"

#include <algorithm>

#include "access/phase.h"
#include "platform/prefetch.h"

namespace embstore {

ResidentUpdate::ResidentUpdate(const UpdateParts& parts, const GradientBatch& batch, bool counts_new_rows)
    : parts_(parts),
      batch_(batch),
      counts_new_rows_(counts_new_rows),
      insertion_(parts.store, /*max_departures=*/0),
      claim_(parts.store.tiers().first().slots(), 0),
      image_room_(parts.store.index()) {}

bool ResidentUpdate::prepare(uint64_t& new_rows) {
  SlotAllocator& slots = parts_.store.tiers().first().slots();
  // Assuming that every key is new saves a search, and there is nearly always enough room.
  new_rows = counts_new_rows_ ? count_new_rows() : batch_.keys().size();
  if (!insertion_.try_reserve_rows(new_rows)) {
    if (!counts_new_rows_) new_rows = count_new_rows();
    if (counts_new_rows_ || !insertion_.try_reserve_rows(new_rows)) return false;
  }
  if (!slots.try_claim(new_rows)) return false;
  claim_ = SlotClaim(slots, new_rows);
  if (parts_.filters.any()) uncounted_.reserve(batch_);
  for (int s = 0; s < kShards; ++s) {
    const size_t keys = batch_.shard(s).size();
    if (keys == 0) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    AdmissionFilter* const filter = parts_.filters.shard(s);
    // Here, too, if the shard has room for that: it must not grow for keys that it already has.
    const uint64_t room = shard.room();
    const bool has_room = keys <= room && (filter == nullptr || filter->has_room(keys));
    const NewKeys coming = has_room ? NewKeys{keys, keys} : count_new(shard, s, room);
    rooms_[static_cast<size_t>(s)] = shard.reserve_room(coming.rows, batch_.shard(s).front().key);
    if (filter != nullptr) filter->make_room(coming.unknown_keys);
    image_room_.reserve(shard, s, keys);
  }
  return true;
}

ResidentUpdate::NewKeys ResidentUpdate::count_new(const IndexShard& shard, int number,
                                                  uint64_t enough) const {
  constexpr size_t kKeysFetchedAhead = 16;
  const std::span<const KeyGradient> keys = batch_.shard(number);
  const AdmissionFilter* const filter = parts_.filters.shard(number);
  const BucketArray& buckets = shard.buckets();
  NewKeys coming;
  size_t known = 0;
  for (size_t i = 0; i < keys.size() + kKeysFetchedAhead; ++i) {
    if (i < keys.size()) {
      prefetch_line(buckets.home(keys[i].key));
      if (filter != nullptr) filter->prefetch(keys[i].hash);
    }
    if (i < kKeysFetchedAhead) continue;
    const KeyGradient& key = keys[i - kKeysFetchedAhead];
    if (shard.entry(key.key)) {
      const size_t rest = keys.size() - ++known;
      if (filter == nullptr && rest <= enough) return {rest, 0};
      continue;
    }
    const uint64_t count = filter == nullptr ? 0 : filter->count(key.key, key.hash);
    coming.rows += filter == nullptr || filter->admits_after(count, key.occurrences);
    coming.unknown_keys += count == 0;
  }
  return coming;
}

uint64_t ResidentUpdate::count_new_rows() const {
  uint64_t count = 0;
  for (int s = 0; s < kShards; ++s) {
    if (batch_.shard(s).empty()) continue;
    IndexShard& shard = parts_.store.shard(s);
    MutexLock lock(shard.mutex);
    count += count_new(shard, s, 0).rows;
  }
  return count;
}

void ResidentUpdate::commit(const UpdateTime& time) noexcept {
  Phase phase(parts_.store.tiers().first().meter());
  visit_shards_of(batch_, [&](int number) {
    IndexShard& shard = parts_.store.shard(number);
    MutexLock lock(shard.mutex);
    update_shard(shard, number, time, phase);
  });
  if (left_slots_ != 0) claim_.untake(std::span(taken_slots_).last(left_slots_));
  parts_.store.tiers().first().count_rows(phase, Access::kUpdate, updated_rows_);
}

Slot ResidentUpdate::next_slot() {
  if (left_slots_ == 0) {
    left_slots_ = std::min<uint64_t>(claim_.count(), kKeysABlock);
    claim_.take(std::span(taken_slots_).last(left_slots_));
  }
  return taken_slots_[taken_slots_.size() - left_slots_--];
}

void ResidentUpdate::update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase) {
  MemoryTier& tier = parts_.store.tiers().first();
  RowArray& rows = tier.rows();
  const std::span<const KeyGradient> keys = batch_.shard(number);
  AdmissionFilter* const filter = parts_.filters.shard(number);
  // Each block is found before the previous one is updated, so that its rows are fetched meanwhile.
  std::array<std::array<IndexEntry, kKeysABlock>, 2> found;
  std::array<RowUpdate, kKeysABlock> updates;
  std::array<Slot, kKeysABlock> slots;
  const BucketArray& buckets = shard.buckets();
  const auto block_from = [keys](size_t first) {
    const size_t begin = std::min(first, keys.size());
    return keys.subspan(begin, std::min(kKeysABlock, keys.size() - begin));
  };
  const auto fetch_buckets = [&](size_t first) {
    for (const KeyGradient& key : block_from(first)) {
      prefetch_line(buckets.home(key.key));
      if (filter != nullptr) filter->prefetch(key.hash);
    }
  };
  fetch_buckets(0);
  fetch_buckets(kKeysABlock);
  find_block(shard, block_from(0), found[0]);
  for (size_t first = 0; first < keys.size(); first += kKeysABlock) {
    const std::span<const KeyGradient> block = block_from(first);
    std::array<IndexEntry, kKeysABlock>& entries = found[first / kKeysABlock % 2];
    fetch_buckets(first + 2 * kKeysABlock);
    find_block(shard, block_from(first + kKeysABlock), found[(first / kKeysABlock + 1) % 2]);
    size_t count = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      if (!entries[i]) entries[i] = admit(shard, number, block[i], phase);
      if (!entries[i]) continue;
      const Slot slot = entries[i].ref().slot();
      if (shard.save != nullptr) [[unlikely]]
        shard.save->prepare_change(tier, slot, block[i].key);
      rows.meta(slot).count(block[i].occurrences, time.context.global_step, time.save_span);
      slots[count] = slot;
      updates[count++] = {&entries[i].bucket->guard, rows.row(slot), block[i].gradient};
    }
    parts_.optimizer.update(std::span(updates).first(count), parts_.store.layout(), time.context);
    updated_rows_ += count;
    if (phase.wants_addresses()) [[unlikely]] {
      tier.touch_rows(phase, Access::kUpdate, count, parts_.store.layout().row_bytes(),
                      [&slots](size_t i) { return slots[i]; });
    }
  }
  if (filter != nullptr) uncounted_.count(*filter, time.context.global_step);
}

void ResidentUpdate::find_block(const IndexShard& shard, std::span<const KeyGradient> block,
                                std::span<IndexEntry, kKeysABlock> entries) const {
  const RowArray& rows = parts_.store.tiers().first().rows();
  const auto dim = static_cast<size_t>(parts_.store.layout().dim());
  for (size_t i = 0; i < block.size(); ++i) {
    prefetch_row(block[i].gradient, dim);
    entries[i] = shard.entry(block[i].key);
    if (entries[i]) rows.prefetch(entries[i].ref().slot());
  }
}

IndexEntry ResidentUpdate::admit(IndexShard& shard, int number, const KeyGradient& key, Phase& phase) {
  IndexShard::Room& room = rooms_[static_cast<size_t>(number)];
  uint64_t earlier = 0;
  if (const AdmissionFilter* const filter = parts_.filters.shard(number)) {
    earlier = filter->count(key.key, key.hash);
    // If two batches together bring a key over its threshold, both may have expected it to wait, and have
    // reserved no room for its row. Then the next batch gives it one.
    const bool has_room = claim_.count() + left_slots_ != 0 && room.left() != 0;
    const bool gets_row = filter->admits_after(earlier, key.occurrences) && has_room;
    uncounted_.note(key, earlier, gets_row);
    if (!gets_row) return {};
  }
  const Slot slot = next_slot();
  MemoryTier& tier = parts_.store.tiers().first();
  tier.start(slot, key.key, parts_.initial.row_of(key.key), parts_.slot_values, earlier);
  tier.count_row(phase, Access::kStore, slot);
  return insertion_.insert(shard, key.key, RowRef(/*tier=*/0, slot), room);
}

}  // namespace embstore
