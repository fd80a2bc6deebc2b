#include "keep/table_checkpoint.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "errors/error.h"
#include "keep/replacement.h"
#include "keep/save.h"
#include "keep/table_moment.h"
#include "store/inclusive_cache.h"
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

void find_wanted(const RowStore& store, std::span<const Slot> slots, BatchInFlight& batch) {
  const InclusiveCache& copies = *store.cache();
  const SlotRanks& ranks = store.tiers().first().ranks();
  IndexReader reader(store.index());
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + IndexReader::kBucketsFetchedAhead < slots.size()) {
      reader.prefetch(hash_key(ranks.key(slots[i + IndexReader::kBucketsFetchedAhead])));
    }
    const Slot slot = slots[i];
    if (!copies.is_wanted(slot)) continue;  // written meanwhile by whoever changed it
    const int64_t key = ranks.key(slot);
    const IndexHit hit = reader.find(hash_key(key), key);
    if (hit.ref == RowRef(InclusiveCache::kCache, slot)) batch.add(key, hit);
  }
  batch.order_by_shards();
}

void write_wanted(RowStore& store, std::span<const Slot> slots) {
  InclusiveCache& cache = *store.cache();
  const Epochs::Guard guard = store.epochs().enter();
  const BatchPtr batch = store.start_batch();
  find_wanted(store, slots, *batch);
  batch->read(store.tiers());
  RowCopies copies(store, InclusiveCache::kPool, batch->rows_of(InclusiveCache::kCache));
  InclusiveCache::WritePhase phase(cache);
  for (size_t first = 0; first < batch->size();) {
    const int number = shard_of(batch->found(first).hash());
    IndexShard& shard = store.shard(number);
    MutexLock lock(shard.mutex);
    uint64_t written = 0;
    for (; first < batch->size() && shard_of(batch->found(first).hash()) == number; ++first) {
      const BatchInFlight::Found& found = batch->found(first);
      const IndexEntry entry = shard.entry(found.hash(), found.key);
      const Slot slot = found.hit.ref.slot();
      if (!entry || entry.ref() != found.hit.ref || !cache.is_wanted(slot)) continue;
      if (entry.bucket == found.hit.bucket && batch->holds(first)) {
        cache.was_written(slot, copies.place(found.row).slot());
      } else {  // the row, or a neighbour in the index, was being changed while it was copied
        cache.write_wanted(slot, found.key, phase);
        ++written;
      }
    }
    if (written == 0) continue;
    cache.pool().fence();
    cache.were_fenced(written);
  }
}

// Writes the changed rows that checkpoints want to the pool, while look-ups and updates go on.
void write_back(TableParts& table, Operation& operation) {
  RowStore& store = *table.store;
  const InclusiveCache& copies = *store.cache();
  while (copies.wanted_count() != 0) {
    const std::vector<Slot> slots = copies.wanted();
    for (size_t first = 0; first < slots.size(); first += kRowsAtOnce) {
      // Copies that nothing refers to yet must not be taken for rows by a checkpoint that begins meanwhile.
      const MutexLock lock(table.write_back_mutex);
      write_wanted(store, std::span(slots).subspan(first, std::min(kRowsAtOnce, slots.size() - first)));
      operation.refresh();
    }
    if (slots.empty()) std::this_thread::yield();  // a row was on its way from one slot to another
  }
}

}  // namespace

BegunCheckpoint begin_checkpoint(TableParts& table, checkpoint::Writer& file, bool waiting_keys) {
  log::Checkpoints& checkpoints = *table.store->tiers().checkpoints();
  checkpoints.check_is_taken_up();
  const BatchBoundary boundary(table);
  if (waiting_keys) WaitingKeys(table).write(file);
  BegunCheckpoint begun{.number = 0, .rows = 0, .state = state_of(table)};
  for (size_t t = 0; t < table.store->tiers().size(); ++t) begun.rows += table.store->rows(t);
  begun.number = checkpoints.begin(moment_of(begun.state));
  if (InclusiveCache* const copies = table.store->cache()) copies->want_changed(begun.number);
  return begun;
}

void commit_checkpoint(TableParts& table, Operation& operation, uint64_t number,
                       const log::CheckpointId& id) {
  if (table.store->cache() != nullptr) write_back(table, operation);
  table.store->tiers().checkpoints()->commit(number, id);
}

void drop_checkpoint(TableParts& table, uint64_t number) {
  log::Checkpoints& checkpoints = *table.store->tiers().checkpoints();
  if (checkpoints.has_pending()) {
    // Nobody may be writing a row for it meanwhile, or find that it isn't wanted any more.
    const BatchBoundary boundary(table);
    checkpoints.drop(number);
    InclusiveCache* const copies = table.store->cache();
    if (copies != nullptr && !checkpoints.has_pending()) copies->forget_wanted();
  } else {
    checkpoints.drop(number);
  }
  table.store->tiers().compact();
}

void give_up_checkpoints(TableParts& table) {
  table.store->tiers().checkpoints()->drop_all();
  table.store->tiers().compact();
}

void restore_checkpoint(TableParts& table, uint64_t number, checkpoint::Partition partition,
                        const checkpoint::Chain& chain, const TableState& state, bool waiting_keys) {
  if (table.store->tiers().checkpoints()->has_pending()) {
    throw Error(ErrorKind::kInvalidArgument,
                table.name + ": a checkpoint is still being written; wait for it");
  }
  Replacement replacement(table);
  replacement.clear();
  try {
    replacement.take_over(number);
    checkpoint::restore_files(replacement, partition, chain, waiting_keys);
    replacement.finish(state);
  } catch (...) {
    replacement.clear();
    throw;
  }
}

}  // namespace embstore
