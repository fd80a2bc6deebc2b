#include "keep/table_replacement.h"

#include <algorithm>
#include <string>

#include "errors/error.h"

namespace embstore {

TableReplacement::TableReplacement(Table& table)
    : table_(table),
      operation_(table),
      queue_(table.turnstile_),
      gate_(table.apply_gate_),
      moves_([&table] {
        if (!table.mover_) return std::unique_lock<std::mutex>();
        table.mover_->settle();  // what was served before counts for the rows of before
        return table.mover_->pause();
      }()),
      save_span_(table.spans_.start_over()),
      floors_(table.tiers_->size()) {}

void TableReplacement::clear() {
  constexpr size_t kRowsAtATime = 4096;
  for (int s = 0; s < kShards; ++s) {
    std::vector<int64_t> keys;
    {
      IndexShard& shard = table_.index_->shard(s);
      const MutexLock lock(shard.mutex);
      keys.reserve(shard.entries());
      shard.for_each([&keys](int64_t key, RowRef) { keys.push_back(key); });
      if (auto& filter = table_.filters_[static_cast<size_t>(s)]) {
        filter = make_filter(table_.filter_spec_);
      }
    }
    for (size_t first = 0; first < keys.size(); first += kRowsAtATime) {
      table_.remove_rows(std::span(keys).subspan(first, std::min(kRowsAtATime, keys.size() - first)));
    }
  }
  table_.removed_keys_ = {};
  floors_.assign(floors_.size(), std::nullopt);
}

void TableReplacement::put(const RowBatch& rows) {
  std::vector<size_t> fresh;
  fresh.reserve(rows.size());
  {
    IndexReader reader(*table_.index_);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t key = rows.header(i).key;
      if (!reader.find(hash_key(key), key).ref) fresh.push_back(i);
    }
  }
  if (!table_.budget_.reserve(fresh.size())) {
    throw Error(ErrorKind::kStoreFull,
                table_.name_ + ": its tiers have no room for the rows of the checkpoint; they hold " +
                    std::to_string(table_.tiers_->total_capacity_rows()) + " rows; raise storage_size");
  }
  std::vector<std::vector<size_t>> by_tier(table_.tiers_->size());
  for (const size_t i : fresh) by_tier[tier_for(rows.header(i))].push_back(i);
  for (size_t t = 0; t < by_tier.size(); ++t) put_in_tier(t, rows, by_tier[t]);
}

size_t TableReplacement::tier_for(const RowHeader& header) const {
  if (!table_.mover_) return 0;
  const Rank rank = Rank::of(table_.mover_->strategy(), header.frequency + header.served,
                             std::max(header.stamp, AccessClock::kFirstStamp));
  size_t t = 0;
  while (t + 1 < floors_.size() && floors_[t] && rank <= *floors_[t]) ++t;
  return t;
}

void TableReplacement::put_in_tier(size_t t, const RowBatch& rows, std::span<const size_t> which) {
  TierStack& tiers = *table_.tiers_;
  const bool bounded = table_.mover_ && tiers.memory(t) != nullptr;
  const size_t most = bounded ? std::max<size_t>(1, tiers.headroom_rows(t) / 2) : which.size();
  std::vector<Slot> slots;
  for (size_t first = 0; first < which.size(); first += most) {
    const auto some = which.subspan(first, std::min(most, which.size() - first));
    while (bounded && tiers.rows(t) + some.size() > tiers.capacity_rows(t) + tiers.headroom_rows(t)) {
      make_room();
    }
    slots.resize(some.size());
    store(t, rows, some, slots);
    insert(t, rows, some, slots);
  }
}

void TableReplacement::store(size_t t, const RowBatch& rows, std::span<const size_t> which,
                             std::span<Slot> slots) {
  RowBatch batch(table_.layout_);
  batch.resize(which.size());
  for (size_t k = 0; k < which.size(); ++k) {
    batch.header(k) = rows.header(which[k]);
    batch.header(k).save_span = save_span_;
    std::copy_n(rows.row(which[k]), rows.row_floats(), batch.row(k));
  }
  if (t != 0 || !table_.mover_) {
    table_.tiers_->tier(t).write(batch, slots);
    return;
  }
  Mover::Claim claim = table_.mover_->claim_paused(which.size());
  claim.take(slots);
  for (size_t k = 0; k < slots.size(); ++k) {
    table_.tiers_->first().put(slots[k], batch.header(k), batch.row(k));
  }
}

void TableReplacement::insert(size_t t, const RowBatch& rows, std::span<const size_t> which,
                              std::span<const Slot> slots) {
  std::vector<Place> twice;  // a checkpoint that was tampered with may have a key twice
  for (size_t k = 0; k < which.size(); ++k) {
    const int64_t key = rows.header(which[k]).key;
    const KeyHash hash = hash_key(key);
    IndexShard& shard = table_.index_->shard(shard_of(hash));
    const MutexLock lock(shard.mutex);
    if (shard.entry(hash, key)) {
      twice.push_back({key, slots[k]});
      continue;
    }
    shard.reserve(1);
    shard.insert(hash, key, RowRef(static_cast<uint32_t>(t), slots[k]));
  }
  table_.tiers_->add_rows(t, static_cast<int64_t>(which.size() - twice.size()));
  if (twice.empty()) return;
  table_.tiers_->tier(t).erase(twice);
  table_.budget_.release(twice.size());
  if (t == 0 && table_.mover_) table_.mover_->rows_left(twice.size());
}

void TableReplacement::make_room() {
  table_.mover_->shrink_paused();
  const TierStack& tiers = *table_.tiers_;
  for (size_t t = 0; t + 1 < tiers.size(); ++t) {
    if (tiers.rows(t) < tiers.capacity_rows(t)) continue;
    std::vector<MemoryTier::Candidate> coldest;
    tiers.memory(t)->coldest(1, table_.mover_->strategy(), coldest);
    if (!coldest.empty()) floors_[t] = coldest.front().rank;
  }
}

void TableReplacement::put_waiting_key(const checkpoint::WaitingKeyRecord& waiting) {
  const KeyHash hash = hash_key(waiting.key);
  IndexShard& shard = table_.index_->shard(shard_of(hash));
  const MutexLock lock(shard.mutex);
  AdmissionFilter* const filter = table_.filter_of(hash);
  if (filter == nullptr || shard.entry(hash, waiting.key)) return;
  filter->restore({.key = waiting.key, .count = waiting.count, .version = waiting.version});
}

void TableReplacement::put_sketch(const checkpoint::SketchHeader& header,
                                  std::span<const std::byte> counters) {
  const MutexLock lock(table_.index_->shard(static_cast<int>(header.shard)).mutex);
  AdmissionFilter* const filter = table_.filters_[header.shard].get();
  if (filter == nullptr) return;
  filter->merge_sketch(
      {.counters = header.counters, .hashes = header.hashes, .counter_bits = header.counter_bits}, counters,
      header.waiting_keys);
}

void TableReplacement::finish(const TableState& state) {
  if (table_.mover_) {
    table_.mover_->shrink_paused();
    table_.tiers_->compact();
  }
  if (table_.tiers_->last().keeps_rows()) table_.tiers_->last().flush();
  table_.clock_.advance_to(state.clock);
  const std::lock_guard lock(table_.state_mutex_);
  table_.apply_count_ = state.apply_count;
  table_.optimizer_state_ = state.optimizer;
}

}  // namespace embstore
