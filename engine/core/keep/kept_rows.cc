#include "keep/kept_rows.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>

#include "access/phase.h"
#include "errors/error.h"
#include "keep/replacement.h"
#include "keep/save.h"
#include "keep/table_moment.h"
#include "store/transaction.h"

namespace embstore {
namespace {

constexpr size_t kRowsAtATime = 4096;

struct RankedKey {
  Rank rank;
  int64_t key;
};

// Moves rows of the last tier to tier t, which may be the last, too, and returns how many it moved. Damaged
// rows stay where they are, and don't keep others from moving.
size_t bring_up(RowStore& store, Mover& mover, size_t t, std::span<const RankedKey> ranked) {
  RowBatch rows(store.layout());
  std::vector<int64_t> keys(ranked.size());
  std::transform(ranked.begin(), ranked.end(), keys.begin(), [](const RankedKey& row) { return row.key; });
  for (;;) {
    store.read_settled(keys, rows);
    if (rows.damaged().empty()) break;
    std::set<int64_t> without;
    for (const auto& [position, reason] : rows.damaged()) without.insert(keys[position]);
    std::erase_if(keys, [&without](int64_t key) { return without.contains(key); });
  }
  std::optional<SlotClaim> claim;
  std::optional<MemoryTierSlots> slots;
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
    IndexShard& shard = store.shard_of_key(keys[i]);
    MutexLock lock(shard.mutex);
    RowRef to;
    if (t == 0) {
      to = RowRef(0, slots->next());
      store.tiers().first().put(to.slot(), rows.header(i), rows.row(i));
      store.tiers().first().count_row(phase, Access::kStore, to.slot());
    } else {
      to = copies->place(i);
    }
    rise.move(shard, shard.entry(keys[i]), keys[i], to);
  }
  return keys.size();
}

// Brings the rows that exceed the last tier's capacity to the upper tiers, highest rank first.
void bring_up_excess(RowStore& store, Mover& mover, std::vector<RankedKey> ranked) {
  const size_t last = store.tiers().size() - 1;
  uint64_t excess = store.excess_rows(last);
  if (excess == 0) return;
  std::sort(ranked.begin(), ranked.end(),
            [](const RankedKey& a, const RankedKey& b) { return a.rank > b.rank; });
  const uint64_t most =
      std::max<uint64_t>(1, std::min<uint64_t>(kRowsAtATime, store.tiers().headroom_rows(0) / 2));
  std::span<const RankedKey> left(ranked);
  for (size_t t = 0; t < last; ++t) {
    for (uint64_t room = store.tiers().capacity_rows(t); room > 0 && excess > 0 && !left.empty();) {
      const auto some = left.first(std::min<uint64_t>({most, room, excess, left.size()}));
      const size_t brought = bring_up(store, mover, t, some);
      left = left.subspan(some.size());
      room -= brought;
      excess -= brought;
    }
  }
}

// Writes rows of the last tier again if it keeps their ranks in memory alone.
void write_ranks(RowStore& store, Mover& mover) {
  const size_t last = store.tiers().size() - 1;
  for (int s = 0; s < kShards; ++s) {
    std::vector<RankedKey> rows;
    {
      IndexShard& shard = store.shard(s);
      MutexLock lock(shard.mutex);
      shard.for_each([&](int64_t key, RowRef ref) {
        if (ref.tier() == last && store.tiers().tier(last).rank_is_volatile(ref.slot())) {
          rows.push_back({Rank{}, key});
        }
      });
    }
    for (size_t first = 0; first < rows.size(); first += kRowsAtATime) {
      bring_up(store, mover, last,
               std::span(rows).subspan(first, std::min(kRowsAtATime, rows.size() - first)));
    }
  }
}

// The tier's own compaction may go on meanwhile: it changes only references to its own rows.
void write_down(RowStore& store, size_t t, IndexShard& shard, std::span<const Place> places) {
  RowBatch rows(store.layout());
  store.tiers().tier(t).read(places, rows);
  RowCopies copies(store, store.tiers().size() - 1, rows);
  Transaction fall(store, places.size());
  MutexLock lock(shard.mutex);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t key = places[i].key;
    fall.move(shard, shard.entry(key), key, copies.place(i));
  }
}

}  // namespace

std::vector<log::CheckpointId> kept_rows(const TableParts& table) {
  std::vector<log::CheckpointId> ids;
  for (const log::KeptCheckpoint& kept : table.store->tiers().checkpoints()->kept()) ids.push_back(kept.id);
  return ids;
}

void take_over_kept_rows(TableParts& table, const log::CheckpointId* id) {
  RowStore& store = *table.store;
  log::Checkpoints& checkpoints = *store.tiers().checkpoints();
  const std::vector<log::KeptCheckpoint> kept = checkpoints.kept();
  if (id == nullptr) return checkpoints.drop_all();
  const auto wanted = std::find_if(
      kept.begin(), kept.end(), [id](const log::KeptCheckpoint& checkpoint) { return checkpoint.id == *id; });
  if (wanted == kept.end()) {
    throw Error(ErrorKind::kInvalidArgument, table.name + ": no checkpoint of that id was kept");
  }
  const bool bounded = store.tiers().capacity_rows(store.tiers().size() - 1) != kUnlimitedRows;
  Mutex mutex;
  std::vector<RankedKey> ranked;
  {
    Replacement replacement(table);
    replacement.take_over(wanted->number, [&](std::span<const RowHeader> headers) {
      if (!bounded) return;
      const MutexLock lock(mutex);
      for (const RowHeader& header : headers) {
        ranked.push_back(
            {Rank::of(table.mover->strategy(), header.frequency + header.served, header.stamp), header.key});
      }
    });
    replacement.finish(state_of(wanted->moment));
    checkpoints.drop_newer(wanted->number);
  }
  bring_up_excess(store, *table.mover, std::move(ranked));
  drop_older_rows(table);
}

void keep_rows(TableParts& table, const log::CheckpointId& id) {
  RowStore& store = *table.store;
  try {
    table.mover->settle();  // so that the accesses of served rows count
  } catch (const std::exception&) {
    // Rows that couldn't be moved are moved again below.
  }
  for (uint32_t t = 0; t + 1 < store.tiers().size(); ++t) {
    for (int s = 0; s < kShards; ++s) {
      const std::vector<Place> places = places_in(t, store.shard(s));
      for (size_t first = 0; first < places.size(); first += kRowsAtATime) {
        write_down(store, t, store.shard(s),
                   std::span(places).subspan(first, std::min(kRowsAtATime, places.size() - first)));
      }
    }
  }
  write_ranks(store, *table.mover);
  make_kept_checkpoint(table, id);
}

void make_kept_checkpoint(TableParts& table, const log::CheckpointId& id) {
  log::Checkpoints& checkpoints = *table.store->tiers().checkpoints();
  const uint64_t number = checkpoints.begin(moment_of(state_of(table)));
  try {
    checkpoints.commit(number, id);
  } catch (...) {
    checkpoints.drop_pending();
    throw;
  }
}

void drop_older_rows(TableParts& table) {
  log::Checkpoints& checkpoints = *table.store->tiers().checkpoints();
  const std::vector<log::KeptCheckpoint> kept = checkpoints.kept();
  for (size_t i = 0; i + 1 < kept.size(); ++i) checkpoints.drop(kept[i].number);
}

}  // namespace embstore
