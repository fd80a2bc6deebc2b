// What is kept of rows beside their floats, after an update of them.
#pragma once

#include "gpu/kernels/mirror.h"
#include "row/row_meta.h"

namespace embstore::gpu {

struct CountedUpdate {
  int64_t global_step;
  uint64_t first_stamp;  // of the batch's first id
  uint16_t save_span;
};

struct CountUpdatesArguments {
  Global<RowMeta> metas;               // by slot
  Global<uint64_t> stamps;             // by slot: of the row's last access
  Global<const uint32_t> slots;        // of each distinct id, none twice; what has kNoSlot is left out
  Global<const uint32_t> count;        // one: how many of `slots` there are
  Global<const uint32_t> occurrences;  // of each distinct id
  Global<const uint32_t> positions;    // of the batch, by distinct id and then in order
  Global<const uint32_t> begins;       // in `positions`, of each distinct id
  CountedUpdate update;
};

EMBSTORE_KERNEL(count_updates_of_rows, CountUpdatesArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0] || arguments.slots[i] == kNoSlot) return;
  const uint32_t slot = arguments.slots[i];
  const uint32_t occurrences = arguments.occurrences[i];
  RowMeta meta = arguments.metas[slot];
  meta.count(occurrences, arguments.update.global_step, arguments.update.save_span);
  arguments.metas[slot] = meta;
  const uint32_t last_position = arguments.positions[uint64_t{arguments.begins[i]} + occurrences - 1];
  const uint64_t stamp = arguments.update.first_stamp + last_position;
  // A batch that began later may have been first.
  if (arguments.stamps[slot] < stamp) arguments.stamps[slot] = stamp;
}

}  // namespace embstore::gpu
