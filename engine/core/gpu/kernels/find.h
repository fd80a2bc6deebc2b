// Finds a batch of ids in mirrors, each table's ids in the table's own, and lists the ids that the mirrors
// don't have.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"
#include "gpu/kernels/scan.h"

namespace embstore::gpu {

struct FindArguments {
  MirrorArrays mirror;
  Global<const int64_t> ids;
  Places places;           // the places in `ids` that belong to the mirror's table
  uint32_t blocks;         // the run's number of blocks
  Global<uint32_t> slots;  // each id's slot, or kNoSlot
};

EMBSTORE_KERNEL(find, FindArguments) {
  for_each_place(arguments.places, arguments.ids.count, arguments.blocks, [&](uint64_t i) {
    const int64_t id = arguments.ids[i];
    arguments.slots[i] = find_slot(arguments.mirror, id);
  });
}

// For the ids of all tables together.
struct MissesArguments {
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;  // one element: how many of `ids` there are; empty: all
  Global<const uint32_t> slots;     // as find() wrote them
  Global<uint32_t> block_misses;    // each block's number of misses, then the sum over the blocks before it
  Global<const uint32_t> order;     // if given: each id's position in the caller's batch
  Global<int64_t> missing_ids;      // in the order of `ids`
  Global<uint32_t> missing_places;  // in `ids`
  Global<uint32_t> positions_on_host = {};  // if given, in pinned memory: positions in the caller's batch
};

inline bool is_missing(const MissesArguments& arguments, uint64_t i) {
  return i < (arguments.id_count.count == 0 ? arguments.ids.count : arguments.id_count[0]) &&
         arguments.slots[i] == kNoSlot;
}

EMBSTORE_KERNEL(count_misses, MissesArguments) {
  uint32_t misses;
  sum_before_in_block(is_missing(arguments, global_thread()), misses);
  if (thread_index() == 0) arguments.block_misses[block_index()] = misses;
}

// REQUIRES: the same number of threads a block as count_misses.
EMBSTORE_KERNEL(collect_misses, MissesArguments) {
  const uint64_t i = global_thread();
  const bool missing = is_missing(arguments, i);
  uint32_t misses;
  const uint32_t before = sum_before_in_block(missing, misses);
  if (!missing) return;
  const uint32_t at = arguments.block_misses[block_index()] + before;
  arguments.missing_ids[at] = arguments.ids[i];
  arguments.missing_places[at] = static_cast<uint32_t>(i);
  if (arguments.positions_on_host.count == 0) return;
  arguments.positions_on_host[at] =
      arguments.order.count == 0 ? static_cast<uint32_t>(i) : arguments.order[i];
}

}  // namespace embstore::gpu
