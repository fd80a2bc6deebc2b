// The write path of a table.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <thread>
#include <utility>

#include "errors/error.h"
#include "platform/prefetch.h"
#include "table.h"

namespace embstore {
namespace {

// Keys whose cache misses are in flight together. Enough to cover a miss's latency, few enough for the
// core's outstanding-miss buffers.
constexpr size_t kBlock = 16;

}  // namespace

struct Table::ApplyScope {
  ApplyContext context;
  uint64_t first_stamp;  // of the batch's first id
  uint16_t save_span;
};

void Table::apply_gradients(std::span<const int64_t> ids, const float* gradients,
                            std::optional<int64_t> global_step) {
  const Operation operation(*this);
  thread_local GradientBatch batch;
  batch.group(ids, gradients, layout_.dim());

  {
    const std::shared_lock gate = enter_gate();
    // As if every key were new: cheap, and nearly always to be had.
    if (budget_.reserve(batch.keys().size())) {
      apply_batch(batch, batch.keys().size(), global_step);
      return;
    }
  }
  // Nearly full. What the batch needs exactly can only be told while no other brings rows.
  const std::lock_guard queue(turnstile_);
  const std::unique_lock gate(apply_gate_);
  const uint64_t needed = count_new_rows(batch);
  if (!budget_.reserve(needed)) {
    throw Error(ErrorKind::kStoreFull, name_ + ": the batch brings " + std::to_string(needed) +
                                           " new rows, but its tiers have room for " +
                                           std::to_string(budget_.left()) + " more of their " +
                                           std::to_string(tiers_->total_capacity_rows()) +
                                           "; raise storage_size");
  }
  apply_batch(batch, needed, global_step);
}

void Table::apply_batch(const GradientBatch& batch, uint64_t reserved, std::optional<int64_t> global_step) {
  RowBudget::Reservation reservation(budget_, reserved);
  const ApplyScope scope{begin_apply(global_step), clock_.begin_batch(), spans_.current()};
  StagedRows staged(layout_);  // its buffers serve one shard after another
  // Threads start at different shards, so that they seldom want the same one.
  const size_t start = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (size_t i = 0; i < kShards; ++i) {
    const int shard = static_cast<int>((start + i) % kShards);
    apply_keys(index_->shard(shard), batch.shard(shard), scope, reservation, staged);
  }
}

uint64_t Table::count_new_rows(const GradientBatch& batch) const {
  IndexReader reader(*index_);
  uint64_t count = 0;
  for (const KeyGradient& key : batch.keys()) {
    if (reader.find(key.hash, key.key).ref) continue;
    const AdmissionFilter* const filter = filter_of(key.hash);
    count += filter == nullptr || filter->count(key.key, key.hash) + key.occurrences >= filter->threshold();
  }
  return count;
}

ApplyContext Table::begin_apply(std::optional<int64_t> global_step) {
  const std::lock_guard lock(state_mutex_);
  const ApplyContext context{global_step.value_or(apply_count_), optimizer_state_};
  ++apply_count_;
  optimizer_->advance(optimizer_state_);
  return context;
}

void Table::apply_keys(IndexShard& shard, std::span<const KeyGradient> keys, const ApplyScope& scope,
                       RowBudget::Reservation& reservation, StagedRows& staged) {
  if (!mover_) {
    const MutexLock lock(shard.mutex);
    reservation.use(apply_locked(shard, keys, scope, nullptr, nullptr));
    return;
  }
  // As many at a time as there is sure to be room for, however few rows the first tier has.
  for (size_t first = 0; first < keys.size(); first += mover_->largest_claim()) {
    const auto some = keys.subspan(first, std::min(mover_->largest_claim(), keys.size() - first));
    IndexReader reader(*index_);
    staged.start(*tiers_);
    for (size_t i = 0; i < some.size(); ++i) {
      const IndexHit found = reader.find(some[i].hash, some[i].key);
      if (found.ref && found.ref.tier() != 0) staged.add(some[i].key, some[i].hash, found, i);
    }
    staged.read(*tiers_);  // the slow part, before the lock
    Mover::Claim claim = mover_->claim(some.size());
    {
      const MutexLock lock(shard.mutex);
      reservation.use(apply_locked(shard, some, scope, &claim, &staged));
    }
    mover_->rows_came();
  }
}

uint64_t Table::apply_locked(IndexShard& shard, std::span<const KeyGradient> keys, const ApplyScope& scope,
                             Mover::Claim* claim, const StagedRows* staged) {
  MemoryTier& tier = tiers_->first();
  std::array<IndexEntry, kBlock> entries;
  std::array<RowUpdate, kBlock> updates;
  std::array<Slot, kBlock> slots;
  uint64_t inserted = 0;

  // Which staged row is each key's, if it still is what was staged: settled before anything changes.
  constexpr size_t kNotStaged = std::numeric_limits<size_t>::max();
  std::vector<size_t> staged_at;
  if (staged != nullptr && !staged->empty()) {
    staged_at.resize(keys.size(), kNotStaged);
    for (size_t i = 0; i < staged->size(); ++i) {
      if (staged->holds(i)) staged_at[staged->entry(i).tag] = i;
    }
  }
  RowBatch late(layout_);  // a row that moved down while this shard's lock was awaited

  for (size_t first = 0; first < keys.size(); first += kBlock) {
    const auto block = keys.subspan(first, std::min(kBlock, keys.size() - first));
    shard.reserve(block.size());
    const BucketArray& buckets = shard.buckets();
    for (const KeyGradient& key : block) {
      prefetch_line(buckets.data() + home_bucket(key.hash, buckets.count()));
    }

    // Keys that wait for a row get no slot; those that are admitted bring the count they waited with.
    size_t slots_needed = 0;
    std::array<uint64_t, kBlock> earlier_occurrences{};
    std::array<bool, kBlock> waits{};
    for (size_t i = 0; i < block.size(); ++i) {
      entries[i] = shard.entry(block[i].hash, block[i].key);
      if (entries[i] && entries[i].ref().tier() == 0) {
        const Slot slot = entries[i].ref().slot();
        prefetch_row(tier.row(slot), layout_.row_floats());
        prefetch_line(&tier.meta(slot));
        if (tier.ranked()) tier.prefetch_rank(slot);
        continue;
      }
      if (AdmissionFilter* const filter = entries[i] ? nullptr : filter_of(block[i].hash)) {
        const uint64_t count =
            filter->add(block[i].key, block[i].hash, block[i].occurrences, scope.context.global_step);
        waits[i] = count < filter->threshold();
        if (waits[i]) continue;
        filter->remove(block[i].key, block[i].hash);
        earlier_occurrences[i] = count - block[i].occurrences;
      }
      ++slots_needed;
    }
    if (slots_needed != 0) {
      const std::span<Slot> taken(slots.data(), slots_needed);
      if (claim != nullptr) {
        claim->take(taken);
      } else {
        tier.take(taken);
      }
      const Slot* slot = slots.data();
      for (size_t i = 0; i < block.size(); ++i) {
        if (waits[i]) continue;
        if (!entries[i]) {
          entries[i] = insert_row(shard, block[i], *slot++, earlier_occurrences[i]);
          ++inserted;
          continue;
        }
        const RowRef ref = entries[i].ref();
        if (ref.tier() == 0) continue;
        const size_t at = staged_at.empty() ? kNotStaged : staged_at[first + i];
        if (at != kNotStaged) {
          mover_->promote_entry(shard, entries[i], staged->header(at), staged->row(at), *slot++);
          continue;
        }
        const Place place{block[i].key, ref.slot()};
        tiers_->tier(ref.tier()).read({&place, 1}, late);
        mover_->promote_entry(shard, entries[i], late.header(0), late.row(0), *slot++);
      }
    }
    size_t count = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      if (waits[i]) continue;
      const Slot slot = entries[i].ref().slot();
      RowMeta& meta = tier.meta(slot);
      meta.count(block[i].occurrences, scope.context.global_step, scope.save_span);
      if (tier.ranked()) {
        tier.count_update(slot, meta.frequency, scope.first_stamp + block[i].last_position);
      }
      updates[count++] = {&entries[i].bucket->guard, tier.row(slot), block[i].gradient};
    }
    optimizer_->update({updates.data(), count}, layout_, scope.context);
  }
  tiers_->add_rows(0, static_cast<int64_t>(inserted));
  return inserted;
}

IndexEntry Table::insert_row(IndexShard& shard, const KeyGradient& key, Slot slot,
                             uint64_t earlier_occurrences) {
  MemoryTier& tier = tiers_->first();
  float* const row = tier.row(slot);
  const size_t block = layout_.block_floats();
  std::copy_n(default_row(key.key), layout_.dim(), row);
  for (int s = 0; s < layout_.slot_count(); ++s) {
    std::fill_n(row + static_cast<size_t>(1 + s) * block, block, optimizer_->initial_slot_value(s));
  }
  tier.start(slot, key.key, earlier_occurrences);
  return shard.insert(key.hash, key.key, RowRef(/*tier=*/0, slot));
}

}  // namespace embstore
