// What a table is made of. Look-ups, updates, saves and restores are given it, and say what they need held.
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
#include "lookup/recent_reads.h"
#include "movement/device_wishes.h"
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
  float no_permission_value = 0.0f;  // what a key reads that waits for its row
  size_t partition_count = 1;        // of the variable; the table's name says which it is
};

struct TableParts {
  explicit TableParts(const TableSpec& spec);
  UpdateParts for_updates() { return {*store, filters, initial, *optimizer, slot_values.data()}; }

  const std::string name;
  const std::unique_ptr<const Optimizer> optimizer;
  const std::vector<float> slot_values;  // that new rows' slots start as
  const RowLayout layout;
  InitialRows initial;
  const ShardFilters filters;
  AccessClock clock;
  Epochs epochs;
  std::atomic<bool> closed{false};

  // See SaveTurn.
  std::binary_semaphore save_turn{1};
  ImageMemory image_memory;

  // Shared by updates. Held alone by whoever must see whole batches only, together with a pause of the mover where
  // rows must stay where they are.
  ApplyGate gate;
  // Held by whoever writes rows for a pool's checkpoint in the background, a batch at a time. Taken after the gate and the
  // right to move, and before any shard's mutex.
  Mutex write_back_mutex;
  SaveSpans spans GUARDED_BY(gate);
  RemovedKeys removed_keys GUARDED_BY(gate);

  Mutex state_mutex;
  int64_t apply_count GUARDED_BY(state_mutex) = 0;
  OptimizerState optimizer_state GUARDED_BY(state_mutex);

  // Reset when the table is closed.
  std::unique_ptr<RowStore> store;
  const std::unique_ptr<DeviceSteps> steps;  // null where no tier is in a GPU's memory
  // From a checkpoint's moment until no row in a GPU's memory is wanted any more: steps on the device, which can't write a row
  // before they change it, are refused.
  std::unique_ptr<DeviceSteps::HostUse> write_back_use GUARDED_BY(write_back_mutex);
  std::unique_ptr<DeviceLookUp> device_look_up;  // this and the next two likewise; reset with the store
  std::unique_ptr<DeviceApply> device_apply;
  std::unique_ptr<DeviceWishes> device_wishes;
  std::unique_ptr<Mover> mover;  // null where there is one tier
  RecentReads reads;
};

// The scope of one operation: what it may look at stays, and close() waits for it. Throws Error(kClosed).
class Operation {
 public:
  // Whether it may read, write or move rows in a GPU's memory: then it waits for steps on the device, and they for it, or are
  // refused where it takes long.
  enum class Uses { kRows, kRowsForLong, kNoRows };
  explicit Operation(TableParts& table, Uses uses = Uses::kRows);
  // What was found in the index before may be gone from now on.
  void refresh() { guard_.refresh(); }

 private:
  const SafePointAtEnd safe_point_;  // after the guard, and what the operation has locked, is let go of
  const DeviceSteps::HostUse use_;
  Epochs::Guard guard_;
};

// The scope in which no save is under way but the holder's, and nobody else drops or replaces rows. Comes before every lock. May
// end in another thread than it began in.
class SaveTurn {
 public:
  explicit SaveTurn(TableParts& table) : turn_(table.save_turn) { turn_.acquire(); }
  ~SaveTurn() { turn_.release(); }
  SaveTurn(const SaveTurn&) = delete;
  SaveTurn& operator=(const SaveTurn&) = delete;

 private:
  std::binary_semaphore& turn_;
};

// The scope in which rows stay where they are and nothing is updated, but for a tier's own compaction. Look-ups
// go on.
class SCOPED_CAPABILITY Standstill {
 public:
  // Counts first what was served, so that it counts for the rows that there are; errors of moves are left to whoever
  // needs the room.
  explicit Standstill(TableParts& table) ACQUIRE(table.gate);
  ~Standstill() RELEASE();
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;

  // Null where there is one tier.
  Mover::Pause* moves() { return moves_ ? &*moves_ : nullptr; }

 private:
  TableParts& table_;
  std::optional<Mover::Pause> moves_;
};

}  // namespace embstore
