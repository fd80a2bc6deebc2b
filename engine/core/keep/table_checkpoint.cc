#include "keep/table_checkpoint.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "keep/replacement.h"
#include "keep/save.h"
#include "keep/table_moment.h"
#include "store/inclusive_cache.h"
#include "store/write_back.h"

namespace embstore {
namespace {

// The scope in which no batch is under way, rows stay in their tiers, and no row is being written for a
// checkpoint.
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

// Writes the changed rows that checkpoints want to the pool, while look-ups and updates go on.
void write_back(TableParts& table, Operation& operation) {
  RowStore& store = *table.store;
  const InclusiveCache& copies = *store.cache();
  while (copies.wanted_count() != 0) {
    const std::vector<RowRef> rows = copies.wanted();
    for (size_t first = 0; first < rows.size(); first += kRowsWrittenAtOnce) {
      // Held so that no checkpoint begins meanwhile: it would take copies that nothing refers to yet for
      // rows.
      const MutexLock lock(table.write_back_mutex);
      write_wanted(store, std::span(rows).subspan(first, std::min(kRowsWrittenAtOnce, rows.size() - first)));
      if (copies.wanted_on_device() == 0) table.write_back_use.reset();
      operation.refresh();
    }
    if (rows.empty()) std::this_thread::yield();  // a row was moving from one slot to another
  }
  // Other threads may have written the last ones.
  const MutexLock lock(table.write_back_mutex);
  if (copies.wanted_on_device() == 0) table.write_back_use.reset();
}

}  // namespace

BegunCheckpoint begin_checkpoint(TableParts& table, checkpoint::Writer& file, bool waiting_keys) {
  log::Checkpoints& checkpoints = *table.store->tiers().checkpoints();
  checkpoints.check_not_awaiting_restore();
  const BatchBoundary boundary(table);
  // Besides the caller's use: no step on the device comes in between.
  std::unique_ptr<DeviceSteps::HostUse> use;
  if (table.steps)
    use = std::make_unique<DeviceSteps::HostUse>(table.steps.get(), DeviceSteps::Length::kLong);
  // A process that opens the pool makes its own initial rows anew, so replaced ones are kept in the file.
  if (file.is_first() && table.initial.were_replaced()) file.add_initial_rows(table.initial.values());
  if (waiting_keys) WaitingKeys(table).write(file);
  BegunCheckpoint begun{.number = 0, .rows = 0, .state = state_of(table)};
  for (size_t t = 0; t < table.store->tiers().size(); ++t) begun.rows += table.store->rows(t);
  begun.number = checkpoints.begin(moment_of(begun.state));
  InclusiveCache* const copies = table.store->cache();
  if (copies != nullptr) copies->mark_changed_as_wanted(begun.number);
  table.write_back_mutex.assert_held();  // by the boundary
  if (copies != nullptr && copies->wanted_on_device() != 0 && !table.write_back_use) {
    table.write_back_use = std::move(use);
  }
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
    // No thread may be writing a row for the checkpoint meanwhile, nor find that the row isn't wanted any
    // more.
    const BatchBoundary boundary(table);
    checkpoints.drop(number);
    InclusiveCache* const copies = table.store->cache();
    if (copies != nullptr && !checkpoints.has_pending()) {
      copies->forget_wanted();
      table.write_back_mutex.assert_held();  // by the boundary
      table.write_back_use.reset();
    }
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
  try {
    replacement.replace_all([&] {
      replacement.take_over(number);
      checkpoint::restore_files(replacement, partition, chain, waiting_keys);
      replacement.finish(state);
    });
  } catch (...) {
    table.store->tiers().checkpoints()->await_restore();
    throw;
  }
}

void await_restore(TableParts& table) {
  Replacement replacement(table);
  replacement.clear();
  table.store->tiers().checkpoints()->await_restore();
}

}  // namespace embstore
