// Finding a batch of ids in mirrors, each table's ids in its own, and which of them these haven't.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"
#include "gpu/kernels/scan.h"

namespace embstore::gpu {

struct FindArguments {
  MirrorArrays mirror;
  Global<const int64_t> ids;
  Places places;           // in `ids`, of the mirror's table
  uint32_t blocks;         // of the run
  Global<uint32_t> slots;  // of each id, or kNoSlot
};

EMBSTORE_KERNEL(find, FindArguments) {
  for_each_place(arguments.places, arguments.ids.count, arguments.blocks, [&](uint64_t i) {
    const int64_t id = arguments.ids[i];
    arguments.slots[i] = find_slot(arguments.mirror, id);
  });
}

// Of the ids of all tables.
struct MissesArguments {
  Global<const int64_t> ids;
  Global<const uint32_t> id_count;          // one: how many of `ids` there are; none: all
  Global<const uint32_t> slots;             // as find made them
  Global<uint32_t> block_misses;            // of each block: how many ids have no slot, then those before it
  Global<const uint32_t> order;             // where given: the position of each id in the caller's batch
  Global<int64_t> missing_ids;              // in the order of `ids`
  Global<uint32_t> missing_places;          // in `ids`
  Global<uint32_t> positions_on_host = {};  // in the caller's batch, in pinned memory, where they are wanted
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

// REQUIRES: blocks of as many threads as count_misses's.
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
