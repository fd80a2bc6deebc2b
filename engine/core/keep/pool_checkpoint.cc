#include "keep/pool_checkpoint.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "errors/error.h"
#include "keep/replacement.h"
#include "keep/save.h"
#include "store/pool_copies.h"
#include "store/shard_order.h"
#include "store/transaction.h"

namespace embstore {
namespace {

// Rows that are written at once. With those of a demotion, they fit into the pool's headroom.
constexpr size_t kRowsAtOnce = 1024;
static_assert(kRowsAtOnce + 2048 <= PoolTier::kHeadroomSlots);

// The scope in which no batch is under way, rows stay in their tiers, and none is being written for a checkpoint.
class SCOPED_CAPABILITY BatchBoundary {
 public:
  explicit BatchBoundary(TableParts& table) ACQUIRE(table.gate) NO_THREAD_SAFETY_ANALYSIS : table_(table) {
    table_.gate.enter_alone();
    moves_.emplace(*table_.mover);
    table_.write_back_mutex.lock();
  }
  ~BatchBoundary() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    table_.write_back_mutex.unlock();
    moves_.reset();
    table_.gate.leave_alone();
  }
  BatchBoundary(const BatchBoundary&) = delete;
  BatchBoundary& operator=(const BatchBoundary&) = delete;

 private:
  TableParts& table_;
  std::optional<Mover::Pause> moves_;
};

struct WantedRow {
  Place place;  // in the first tier
  KeyHash hash;
  IndexHit hit;
};

std::vector<WantedRow> find_wanted(const RowStore& store, std::span<const Slot> slots) {
  const PoolCopies& copies = *store.pool_copies();
  const SlotRanks& ranks = store.tiers().first().ranks();
  IndexReader reader(store.index());
  std::vector<WantedRow> found;
  found.reserve(slots.size());
  for (const Slot slot : slots) {
    if (!copies.is_wanted(slot)) continue;  // written meanwhile by whoever changed it
    const int64_t key = ranks.key(slot);
    const KeyHash hash = hash_key(key);
    const IndexHit hit = reader.find(hash, key);
    if (hit.ref == RowRef(0, slot)) found.push_back({{key, slot}, hash, hit});
  }
  std::vector<WantedRow> rows;
  rows.reserve(found.size());
  for (const uint32_t i :
       in_order_of_shards(found.size(), [&found](size_t row) { return found[row].hash; })) {
    rows.push_back(found[i]);
  }
  return rows;
}

void write_wanted(RowStore& store, std::span<const Slot> slots, RowBatch& batch) {
  PoolCopies& pool_copies = *store.pool_copies();
  const Epochs::Guard guard = store.epochs().enter();
  const std::vector<WantedRow> rows = find_wanted(store, slots);
  std::vector<Place> places(rows.size());
  std::transform(rows.begin(), rows.end(), places.begin(), [](const WantedRow& row) { return row.place; });
  store.tiers().first().read(places, batch);
  RowCopies copies(store, 1, batch);
  PoolCopies::WritePhase phase(pool_copies);
  for (size_t first = 0; first < rows.size();) {
    const int number = shard_of(rows[first].hash);
    IndexShard& shard = store.shard(number);
    MutexLock lock(shard.mutex);
    uint64_t written = 0;
    for (; first < rows.size() && shard_of(rows[first].hash) == number; ++first) {
      const auto& [place, hash, hit] = rows[first];
      const IndexEntry entry = shard.entry(hash, place.key);
      if (!entry || entry.ref() != RowRef(0, place.slot) || !pool_copies.is_wanted(place.slot)) continue;
      if (entry.bucket == hit.bucket && hit.holds()) {
        pool_copies.was_written(place.slot, copies.place(first).slot());
      } else {  // the row, or a neighbour in the index, was being changed while it was copied
        pool_copies.write_wanted(place.slot, place.key, phase);
        ++written;
      }
    }
    if (written == 0) continue;
    pool_copies.pool().fence();
    pool_copies.were_fenced(written);
  }
}

// Writes the changed rows that checkpoints want to the pool, while look-ups and updates go on.
void write_back(TableParts& table, Table::Operation& operation) {
  RowStore& store = *table.store;
  const PoolCopies& copies = *store.pool_copies();
  RowBatch batch(store.layout());
  while (copies.wanted_count() != 0) {
    const std::vector<Slot> slots = copies.wanted();
    for (size_t first = 0; first < slots.size(); first += kRowsAtOnce) {
      // Copies that nothing refers to yet must not be taken for rows by a checkpoint that begins meanwhile.
      const MutexLock lock(table.write_back_mutex);
      write_wanted(store, std::span(slots).subspan(first, std::min(kRowsAtOnce, slots.size() - first)),
                   batch);
      operation.refresh();
    }
    if (slots.empty()) std::this_thread::yield();  // a row was on its way from one slot to another
  }
}

}  // namespace

BegunPoolCheckpoint begin_pool_checkpoint(TableParts& table, checkpoint::Writer& file, bool waiting_keys) {
  PoolCopies& copies = *table.store->pool_copies();
  PoolTier& pool = copies.pool();
  pool.check_is_taken_up();
  const BatchBoundary boundary(table);
  if (waiting_keys) save_waiting_keys(table, file);
  BegunPoolCheckpoint begun{.number = pool.newest_number() + 1, .rows = 0, .state = {}};
  for (size_t t = 0; t < table.store->tiers().size(); ++t) begun.rows += table.store->rows(t);
  {
    MutexLock lock(table.state_mutex);
    begun.state = {table.apply_count, table.optimizer_state, table.clock.next_stamp()};
  }
  pool.begin_checkpoint(begun.number);
  if (CheckpointFollower* const follower = table.store->tiers().follower()) {
    try {
      follower->begin_checkpoint(begun.number);
    } catch (...) {
      pool.drop_checkpoint(begun.number);
      throw;
    }
  }
  copies.want_changed(begun.number);
  return begun;
}

void commit_pool_checkpoint(TableParts& table, Table::Operation& operation, uint64_t number,
                            const CheckpointId& id) {
  RowStore& store = *table.store;
  write_back(table, operation);
  if (CheckpointFollower* const follower = store.tiers().follower()) {
    follower->commit_checkpoint({number, id});
  }
  store.tiers().pool()->commit_checkpoint(number, id);
}

void drop_pool_checkpoint(TableParts& table, uint64_t number) {
  PoolCopies& copies = *table.store->pool_copies();
  PoolTier& pool = copies.pool();
  if (pool.has_pending()) {
    // Nobody may be writing a row for it meanwhile, or find that it isn't wanted any more.
    const BatchBoundary boundary(table);
    pool.drop_checkpoint(number);
    if (!pool.has_pending()) copies.forget_wanted();
  } else {
    pool.drop_checkpoint(number);
  }
  if (CheckpointFollower* const follower = table.store->tiers().follower()) {
    follower->drop_checkpoint(number);
    table.store->tiers().compact();
  }
}

void give_up_pool_checkpoints(TableParts& table) {
  PoolTier& pool = *table.store->tiers().pool();
  const std::vector<PoolCheckpoint> checkpoints = pool.checkpoints();
  pool.start_over();
  CheckpointFollower* const follower = table.store->tiers().follower();
  if (follower == nullptr) return;
  for (const PoolCheckpoint& checkpoint : checkpoints) follower->drop_checkpoint(checkpoint.number);
  table.store->tiers().compact();
}

void restore_pool_checkpoint(Table& table, uint64_t number, checkpoint::Partition partition,
                             const checkpoint::Chain& chain, const TableState& state, bool waiting_keys) {
  Replacement replacement(table);
  replacement.check_pool_is_idle();
  replacement.clear();
  try {
    replacement.take_over_pool(number);
    checkpoint::restore_files(replacement, partition, chain, waiting_keys);
    replacement.finish(state);
  } catch (...) {
    replacement.clear();
    throw;
  }
}

}  // namespace embstore
