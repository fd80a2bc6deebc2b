// The parts of a table. Look-ups, updates, saves and restores work on them, and say which locks they need
// held.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <vector>

#include "admission/shard_filters.h"
#include "lookup/device_look_up.h"
#include "lookup/read_cache.h"
#include "movement/device_prefetch.h"
#include "movement/mover.h"
#include "parts/removed_keys.h"
#include "parts/save_spans.h"
#include "parts/table_state.h"
#include "row/initial_rows.h"
#include "row/ranking.h"
#include "row/row_layout.h"
#include "store/row_store.h"
#include "store/shard_save.h"
#include "threads/apply_gate.h"
#include "threads/epochs.h"
#include "threads/mutex.h"
#include "threads/safe_point.h"
#include "tiers/hbm/device_steps.h"
#include "update/batch_update.h"
#include "update/device_apply.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct TableSpec {
  std::string name;
  int dim;
  std::vector<float> default_values;  // rows of dim floats; key k starts as row k mod their number
  std::string optimizer;
  OptimizerParams optimizer_params;
  std::vector<TierSpec> tiers;
  CacheStrategy cache_strategy = CacheStrategy::kLfu;
  FilterSpec filter = NoFilter{};
  float no_permission_value = 0.0f;  // what a key reads while it waits for a row
  size_t partition_count = 1;        // of the variable; the table's name says which one this is
};

struct TableParts {
  explicit TableParts(const TableSpec& spec);
  UpdateParts for_updates() { return {*store, filters, initial, *optimizer, slot_values.data()}; }

  const std::string name;
  const std::unique_ptr<const Optimizer> optimizer;
  const std::vector<float> slot_values;  // initial values of a new row's slots
  const RowLayout layout;
  InitialRows initial;
  const ShardFilters filters;
  AccessClock clock;
  Epochs epochs;
  std::atomic<bool> closed{false};

  // See SaveTurn.
  std::binary_semaphore save_turn{1};
  ImageMemory image_memory;

  // Shared by updates. Held alone by operations that must see whole batches only; with a pause of the mover,
  // too, if rows must stay where they are.
  ApplyGate gate;
  // Held while a thread writes rows for a pool's checkpoint in the background, one batch at a time. Taken
  // after the gate and the right to move, and before any shard's mutex.
  Mutex write_back_mutex;
  SaveSpans spans GUARDED_BY(gate);
  RemovedKeys removed_keys GUARDED_BY(gate);

  Mutex state_mutex;
  int64_t apply_count GUARDED_BY(state_mutex) = 0;
  OptimizerState optimizer_state GUARDED_BY(state_mutex);

  // Reset when the table is closed.
  std::unique_ptr<RowStore> store;
  const std::unique_ptr<DeviceSteps> steps;  // null if no tier is in a GPU's memory
  // Held from a checkpoint's moment until the checkpoint wants no more rows in a GPU's memory. Steps on the
  // device are refused meanwhile, since a kernel can't write a row to the pool before it changes the row.
  std::unique_ptr<DeviceSteps::HostUse> write_back_use GUARDED_BY(write_back_mutex);
  std::unique_ptr<DeviceLookUp> device_look_up;  // null likewise, as are the next two; reset with the store
  std::unique_ptr<DeviceApply> device_apply;
  std::unique_ptr<DevicePrefetch> device_prefetch;
  std::unique_ptr<Mover> mover;  // null if there is one tier
  ReadCache reads;
};

// The scope of one operation: nothing that it may look at is freed, and close() waits for it. Throws
// Error(kClosed).
class Operation {
 public:
  // kNoRows: the operation neither reads, writes nor moves rows in a GPU's memory. Otherwise it waits for
  // steps on the device, and steps wait for it, or are refused if it takes long (kRowsForLong).
  enum class Uses { kRows, kRowsForLong, kNoRows };
  explicit Operation(TableParts& table, Uses uses = Uses::kRows);
  // Lets go of what was found in the index so far: it may be freed from now on.
  void refresh() { guard_.refresh(); }

 private:
  const SafePointAtEnd safe_point_;  // ends last, when the guard and the operation's locks are released
  const DeviceSteps::HostUse use_;
  Epochs::Guard guard_;
};

// The scope in which no other save is under way, and no other thread drops or replaces rows. Comes before
// every lock. May end in another thread than it began in.
class SaveTurn {
 public:
  explicit SaveTurn(TableParts& table) : turn_(table.save_turn) { turn_.acquire(); }
  ~SaveTurn() { turn_.release(); }
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

 private:
  std::binary_semaphore& turn_;
};

// The scope in which rows stay where they are and nothing is updated. Look-ups and a tier's own compaction go
// on.
class SCOPED_CAPABILITY Standstill {
 public:
  // First counts the accesses that were served before, so that they count for the rows that exist then.
  // Errors of moves are left to the thread that needs the room.
  explicit Standstill(TableParts& table) ACQUIRE(table.gate);
  ~Standstill() RELEASE();
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  // Null if there is one tier.
  Mover::Pause* moves() { return moves_ ? &*moves_ : nullptr; }

 private:
  TableParts& table_;
  std::optional<Mover::Pause> moves_;
};

}  // namespace embstore
