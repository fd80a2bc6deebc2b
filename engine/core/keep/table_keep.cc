// Rows that outlive the process: taken over when a table is made, written out when it is closed.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "errors/error.h"
#include "table.h"

namespace embstore {
namespace {

constexpr size_t kRowsAtATime = 4096;

}  // namespace

int64_t Table::apply_count() {
  const std::lock_guard lock(state_mutex_);
  return apply_count_;
}

void Table::advance_apply_count(int64_t at_least) {
  const std::lock_guard lock(state_mutex_);
  apply_count_ = std::max(apply_count_, at_least);
}

std::vector<Table::RankedKey> Table::take_over_rows(CacheStrategy strategy) {
  const auto last = static_cast<uint32_t>(tiers_->size() - 1);
  const bool bounded = tiers_->capacity_rows(last) != TierStack::kUnlimited;
  std::vector<RankedKey> ranked;
  int64_t newest_version = -1;
  uint64_t newest_stamp = 0;
  RecoveryReport report = tiers_->last().recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowHeader& header = rows.header(i);
      const KeyHash hash = hash_key(header.key);
      IndexShard& shard = index_->shard(shard_of(hash));
      const MutexLock lock(shard.mutex);
      shard.reserve(1);
      shard.insert(hash, header.key, RowRef(last, slots[i]));
      newest_version = std::max(newest_version, header.version);
      newest_stamp = std::max(newest_stamp, header.stamp);
      if (!bounded) continue;
      ranked.push_back({Rank::of(strategy, header.frequency + header.served, header.stamp), header.key});
    }
  });
  if (!report.earlier_run) return {};
  if (!budget_.reserve(report.rows)) {
    throw Error(ErrorKind::kStoreFull,
                name_ + ": " + std::to_string(report.rows) + " rows were kept, but its tiers hold " +
                    std::to_string(tiers_->total_capacity_rows()) + "; raise storage_size");
  }
  tiers_->add_rows(last, static_cast<int64_t>(report.rows));
  // What comes now is newer than what was.
  apply_count_ = newest_version + (newest_version < std::numeric_limits<int64_t>::max() ? 1 : 0);
  clock_.advance_to((newest_stamp >> 32) + 1);
  recovery_ = std::move(report);
  return ranked;
}

void Table::bring_up(std::vector<RankedKey> rows) {
  const size_t last = tiers_->size() - 1;
  const uint64_t excess = tiers_->excess_rows(last);
  if (rows.empty() || excess == 0) return;
  std::sort(rows.begin(), rows.end(), [](const RankedKey& a, const RankedKey& b) { return a.rank > b.rank; });
  rows.resize(excess);
  size_t first = 0;
  for (size_t t = 0; t < last; ++t) {
    const size_t count = std::min<uint64_t>(rows.size() - first, tiers_->capacity_rows(t));
    move_up(t, std::span(rows).subspan(first, count));
    first += count;
  }
}

void Table::move_up(size_t t, std::span<const RankedKey> rows) {
  const auto last = static_cast<uint32_t>(tiers_->size() - 1);
  const size_t most = std::min<uint64_t>(kRowsAtATime, mover_->largest_claim());
  RowBatch batch(layout_);
  std::vector<Place> places;
  std::vector<Slot> slots;
  for (size_t first = 0; first < rows.size(); first += most) {
    places.clear();
    for (const RankedKey& row : rows.subspan(first, std::min(most, rows.size() - first))) {
      const KeyHash hash = hash_key(row.key);
      IndexShard& shard = index_->shard(shard_of(hash));
      const MutexLock lock(shard.mutex);
      places.push_back({row.key, shard.entry(hash, row.key).ref().slot()});
    }
    tiers_->last().read(places, batch);
    slots.resize(places.size());
    if (t == 0) {
      Mover::Claim claim = mover_->claim(slots.size());
      claim.take(slots);
      for (size_t i = 0; i < slots.size(); ++i) {
        tiers_->first().put(slots[i], batch.header(i), batch.row(i));
      }
    } else {
      tiers_->tier(t).write(batch, slots);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      const KeyHash hash = hash_key(places[i].key);
      IndexShard& shard = index_->shard(shard_of(hash));
      const MutexLock lock(shard.mutex);
      shard.set_ref(shard.entry(hash, places[i].key), RowRef(static_cast<uint32_t>(t), slots[i]));
    }
    tiers_->last().erase(places);
    tiers_->add_rows(last, -static_cast<int64_t>(places.size()));
    tiers_->add_rows(t, static_cast<int64_t>(places.size()));
  }
}

void Table::write_down() {
  mover_->settle();  // so that what was served counts
  for (size_t t = 0; t + 1 < tiers_->size(); ++t) {
    for (int s = 0; s < kShards; ++s) write_down(t, index_->shard(s));
  }
}

// The tier's own compaction may go on beside this, which changes references to its rows alone.
void Table::write_down(size_t t, IndexShard& shard) {
  const auto last = static_cast<uint32_t>(tiers_->size() - 1);
  std::vector<Place> places;
  {
    const MutexLock lock(shard.mutex);
    shard.for_each([&](int64_t key, RowRef ref) {
      if (ref.tier() == t) places.push_back({key, ref.slot()});
    });
  }
  RowBatch batch(layout_);
  std::vector<Slot> slots;
  for (size_t first = 0; first < places.size(); first += kRowsAtATime) {
    const auto some = std::span(places).subspan(first, std::min(kRowsAtATime, places.size() - first));
    tiers_->tier(t).read(some, batch);
    slots.resize(some.size());
    tiers_->last().write(batch, slots);
    {
      const MutexLock lock(shard.mutex);
      for (size_t i = 0; i < some.size(); ++i) {
        const int64_t key = some[i].key;
        shard.set_ref(shard.entry(hash_key(key), key), RowRef(last, slots[i]));
      }
    }
    tiers_->tier(t).erase(some);
    tiers_->add_rows(last, static_cast<int64_t>(some.size()));
    tiers_->add_rows(t, -static_cast<int64_t>(some.size()));
    if (t == 0) mover_->rows_left(some.size());
  }
}

}  // namespace embstore
