#include "keep/kept_rows.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "store/transaction.h"

namespace embstore {
namespace {

constexpr size_t kRowsAtATime = 4096;

struct RankedKey {
  Rank rank;
  int64_t key;
};

// Rows that lie at the places that the recovery tells; adds them to `ranked` unless it's null. False where the tiers
// have no room for them.
bool refer_to(TableParts& table, const RowBatch& rows, std::span<const Slot> slots,
              std::vector<RankedKey>* ranked) {
  RowStore& store = *table.store;
  const auto last = static_cast<uint32_t>(store.tiers().size() - 1);
  Transaction arrival(store, /*most_departures=*/0);
  if (!arrival.try_reserve_rows(rows.size())) return false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowHeader& header = rows.header(i);
    const KeyHash hash = hash_key(header.key);
    IndexShard& shard = store.shard_of_hash(hash);
    IndexShard::Room room;
    MutexLock lock(shard.mutex);
    room = shard.reserve_room(1);
    arrival.insert(shard, hash, header.key, RowRef(last, slots[i]), room);
    if (ranked == nullptr) continue;
    ranked->push_back(
        {Rank::of(table.mover->strategy(), header.frequency + header.served, header.stamp), header.key});
  }
  return true;
}

// Moves rows of the last tier to tier t.
void bring_up(RowStore& store, Mover& mover, size_t t, std::span<const RankedKey> ranked) {
  const size_t most =
      std::max<size_t>(1, std::min<uint64_t>(kRowsAtATime, store.tiers().headroom_rows(0) / 2));
  RowBatch rows(store.layout());
  std::vector<DamagedRow> damaged;
  for (size_t first = 0; first < ranked.size(); first += most) {
    const auto some = ranked.subspan(first, std::min(most, ranked.size() - first));
    std::vector<int64_t> keys(some.size());
    std::transform(some.begin(), some.end(), keys.begin(), [](const RankedKey& row) { return row.key; });
    store.read_settled(keys, rows, damaged);
    if (!damaged.empty()) {
      throw DamagedRowsError({keys[damaged.front().position]}, damaged.front().reason);
    }
    std::optional<SlotClaim> claim;
    std::optional<FirstTierSlots> slots;
    std::optional<RowCopies> copies;
    if (t == 0) {
      claim.emplace(mover.claim(keys.size()));
      slots.emplace(*claim, keys.size());
    } else {
      copies.emplace(store, t, rows);
    }
    Transaction rise(store, keys.size());
    Phase phase(store.tiers().first().meter());
    for (size_t i = 0; i < keys.size(); ++i) {
      const KeyHash hash = hash_key(keys[i]);
      IndexShard& shard = store.shard_of_hash(hash);
      MutexLock lock(shard.mutex);
      RowRef to;
      if (t == 0) {
        to = RowRef(0, slots->next());
        store.tiers().first().put(to.slot(), rows.header(i), rows.row(i));
        store.tiers().first().count_row(phase, Access::kStore, to.slot());
      } else {
        to = copies->place(i);
      }
      rise.move(shard, shard.entry(hash, keys[i]), keys[i], to);
    }
  }
}

// Brings what the last tier has too much to the upper ones, highest rank first.
void bring_up_excess(RowStore& store, Mover& mover, std::vector<RankedKey> ranked) {
  const size_t last = store.tiers().size() - 1;
  const uint64_t excess = store.excess_rows(last);
  if (ranked.empty() || excess == 0) return;
  std::sort(ranked.begin(), ranked.end(),
            [](const RankedKey& a, const RankedKey& b) { return a.rank > b.rank; });
  ranked.resize(excess);
  size_t first = 0;
  for (size_t t = 0; t < last; ++t) {
    const size_t count = std::min<uint64_t>(ranked.size() - first, store.tiers().capacity_rows(t));
    bring_up(store, mover, t, std::span(ranked).subspan(first, count));
    first += count;
  }
}

std::vector<Place> places_in(size_t t, IndexShard& shard) {
  std::vector<Place> places;
  MutexLock lock(shard.mutex);
  shard.for_each([&](int64_t key, RowRef ref) {
    if (ref.tier() == t) places.push_back({key, ref.slot()});
  });
  return places;
}

// The tier's own compaction may go on beside this, which changes references to its rows alone.
void write_down(RowStore& store, size_t t, IndexShard& shard, std::span<const Place> places) {
  RowBatch rows(store.layout());
  store.tiers().tier(t).read(places, rows);
  RowCopies copies(store, store.tiers().size() - 1, rows);
  Transaction fall(store, places.size());
  MutexLock lock(shard.mutex);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t key = places[i].key;
    fall.move(shard, shard.entry(hash_key(key), key), key, copies.place(i));
  }
}

}  // namespace

void take_over_kept_rows(TableParts& table) {
  RowStore& store = *table.store;
  Tier& last = store.tiers().last();
  if (!last.keeps_rows()) return;
  const bool bounded = store.tiers().capacity_rows(store.tiers().size() - 1) != kUnlimitedRows;
  std::vector<RankedKey> ranked;
  int64_t newest_version = RowMeta::kNeverUpdated;
  uint64_t newest_stamp = 0;
  bool fits = true;
  RecoveryReport report = last.recover([&](const RowBatch& rows, std::span<const Slot> slots) {
    for (size_t i = 0; i < rows.size(); ++i) {
      newest_version = std::max(newest_version, rows.header(i).version);
      newest_stamp = std::max(newest_stamp, rows.header(i).stamp);
    }
    fits = refer_to(table, rows, slots, bounded ? &ranked : nullptr) && fits;
  });
  if (!fits) {
    throw Error(ErrorKind::kStoreFull,
                table.name + ": " + std::to_string(report.rows) + " rows were kept, but its tiers hold " +
                    std::to_string(store.tiers().total_capacity_rows()) + "; raise storage_size");
  }
  if (!report.earlier_run) return;
  // What comes now is newer than what was.
  {
    MutexLock lock(table.state_mutex);
    table.apply_count = newest_version + (newest_version < std::numeric_limits<int64_t>::max() ? 1 : 0);
  }
  table.clock.advance_to(newest_stamp + 1);
  table.recovery = std::move(report);
  bring_up_excess(store, *table.mover, std::move(ranked));
}

void write_down_all_rows(TableParts& table) {
  RowStore& store = *table.store;
  std::exception_ptr first_error;
  // What can be written is, whatever can't.
  const auto attempt = [&first_error](const std::function<void()>& step) {
    try {
      step();
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  };
  attempt([&] { table.mover->settle(); });  // so that what was served counts
  first_error = nullptr;                    // moves that can't be made are tried anew below
  attempt([&] { store.bury_removed(); });
  for (size_t t = 0; t + 1 < store.tiers().size(); ++t) {
    for (int s = 0; s < kShards; ++s) {
      const std::vector<Place> places = places_in(t, store.shard(s));
      for (size_t first = 0; first < places.size(); first += kRowsAtATime) {
        const auto some = std::span(places).subspan(first, std::min(kRowsAtATime, places.size() - first));
        attempt([&] { write_down(store, t, store.shard(s), some); });
      }
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace embstore
