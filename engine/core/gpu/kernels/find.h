// Finding a batch of ids in the mirror, and which of them it hasn't. Ids that aren't in `part` are left out: they have no slot, and
// aren't missing.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/scan.h"
#include "row/key_partition.h"

namespace embstore::gpu {

struct FindArguments {
  MirrorArrays mirror;
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;  // one: how many of `ids` there are; none: all
  BatchPart part;
  Global<uint32_t> slots;         // of each id, or kNoSlot
  Global<uint32_t> block_misses;  // how many ids of each block have none
  Global<uint32_t> block_hits;    // how many have one; where it is wanted
};

template <class Arguments>
inline bool is_there(const Arguments& arguments, uint64_t i) {
  return i < (arguments.id_count.count == 0 ? arguments.ids.count : arguments.id_count[0]);
}

EMBSTORE_KERNEL(find, FindArguments) {
  const uint64_t i = global_thread();
  uint32_t missing = 0;
  uint32_t found = 0;
  if (is_there(arguments, i)) {
    const int64_t id = arguments.ids[i];
    uint32_t slot = kNoSlot;
    if (arguments.part.has(id)) {
      slot = find_slot(arguments.mirror, id);
      missing = slot == kNoSlot;
      found = slot != kNoSlot;
    }
    arguments.slots[i] = slot;
  }
  uint32_t misses;
  sum_before_in_block(missing, misses);
  if (thread_index() == 0) arguments.block_misses[block_index()] = misses;
  if (arguments.block_hits.count == 0) return;
  uint32_t hits;
  sum_before_in_block(found, hits);
  if (thread_index() == 0) arguments.block_hits[block_index()] = hits;
}

struct CollectMissesArguments {
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;
  BatchPart part;
  Global<const uint32_t> slots;
  Global<const uint32_t> misses_before_block;  // as scan_counts made them
  Global<int64_t> missing_ids;                 // in the order of `ids`
  Global<uint32_t> missing_positions;          // in `ids`
  Global<uint32_t> positions_on_host = {};     // likewise, in pinned memory, where they are wanted
};

// REQUIRES: blocks of as many threads as find's.
EMBSTORE_KERNEL(collect_misses, CollectMissesArguments) {
  const uint64_t i = global_thread();
  const uint32_t missing =
      is_there(arguments, i) && arguments.slots[i] == kNoSlot && arguments.part.has(arguments.ids[i]);
  uint32_t misses;
  const uint32_t before = sum_before_in_block(missing, misses);
  if (missing == 0) return;
  const uint32_t at = arguments.misses_before_block[block_index()] + before;
  arguments.missing_ids[at] = arguments.ids[i];
  arguments.missing_positions[at] = static_cast<uint32_t>(i);
  if (arguments.positions_on_host.count != 0) arguments.positions_on_host[at] = static_cast<uint32_t>(i);
}

}  // namespace embstore::gpu
