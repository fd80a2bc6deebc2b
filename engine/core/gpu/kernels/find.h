// Finding a batch of ids in the mirror, and which of them it hasn't.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/scan.h"

namespace embstore::gpu {

struct FindArguments {
  MirrorArrays mirror;
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;  // one: how many of `ids` there are
  Global<uint32_t> slots;           // of each id, or kNoSlot
  Global<uint32_t> block_misses;    // how many ids of each block have none
};

EMBSTORE_KERNEL(find, FindArguments) {
  const uint64_t i = global_thread();
  uint32_t missing = 0;
  if (i < arguments.id_count[0]) {
    const uint32_t slot = find_slot(arguments.mirror, arguments.ids[i]);
    arguments.slots[i] = slot;
    missing = slot == kNoSlot;
  }
  uint32_t misses;
  sum_before_in_block(missing, misses);
  if (thread_index() == 0) arguments.block_misses[block_index()] = misses;
}

struct CollectMissesArguments {
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;
  Global<const uint32_t> slots;
  Global<const uint32_t> misses_before_block;  // as scan_counts made them
  Global<int64_t> missing_ids;                 // in the order of `ids`
  Global<uint32_t> missing_positions;          // in `ids`
};

// REQUIRES: blocks of as many threads as find's.
EMBSTORE_KERNEL(collect_misses, CollectMissesArguments) {
  const uint64_t i = global_thread();
  const uint32_t missing = i < arguments.id_count[0] && arguments.slots[i] == kNoSlot;
  uint32_t misses;
  const uint32_t before = sum_before_in_block(missing, misses);
  if (missing == 0) return;
  const uint32_t at = arguments.misses_before_block[block_index()] + before;
  arguments.missing_ids[at] = arguments.ids[i];
  arguments.missing_positions[at] = static_cast<uint32_t>(i);
}

}  // namespace embstore::gpu
