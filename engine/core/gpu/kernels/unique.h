// Lists the distinct ids of a batch in the order of their first occurrence, and says for each id which
// distinct id it is.
//
// 0. clear_table
// 1. claim_ids: each id finds its entry of an open-addressed table, which ends with the first position of that id.
// 2. count_first, scan_counts: count the first occurrences of ids, block by block.
// 3. number_first: gives the first occurrences their numbers, in order.
// 4. number_ids: every id takes the number from its entry.
// An id that is left out takes a number that no distinct id has: it comes last when the batch is sorted by numbers.
// Each step is a kernel of its own, since a thread can rely only on what earlier kernels wrote in other blocks.
#pragma once

#include "gpu/kernels/scan.h"
#include "row/key_hash.h"

namespace embstore::gpu {

inline constexpr uint32_t kNoPosition = 0xffffffff;

struct UniqueArguments {
  Global<const int64_t> ids;
  Global<const int64_t> kept;        // for each id: 0 leaves it out of the batch; empty: all are kept
  Global<const uint32_t> id_count;   // one element: how many of `ids` count, the rest is left out; empty: all
  Global<uint32_t> first_positions;  // the table: has more entries than ids, all kNoPosition at first
  Global<uint32_t> numbers;          // the number of each entry's distinct id
  Global<uint32_t> entries;          // each id's entry in the table
  Global<uint32_t> block_firsts;     // each block's first occurrences, then the sum over the blocks before
  Global<int64_t> keys;              // the distinct ids
  // Each id's place in `keys`. A left-out id gets the last number that there could be.
  Global<uint32_t> inverse;
};

inline bool is_kept(const UniqueArguments& arguments, uint32_t i) {
  return i < (arguments.id_count.count == 0 ? arguments.ids.count : arguments.id_count[0]) &&
         (arguments.kept.count == 0 || arguments.kept[i] != 0);
}

EMBSTORE_KERNEL(clear_table, UniqueArguments) {
  const uint64_t at = global_thread();
  if (at < arguments.first_positions.count) arguments.first_positions[at] = kNoPosition;
}

EMBSTORE_KERNEL(claim_ids, UniqueArguments) {
  const uint32_t i = global_thread();
  if (!is_kept(arguments, i)) return;
  const int64_t id = arguments.ids[i];
  const uint64_t size = arguments.first_positions.count;
  uint64_t at = ((hash_key(id) & 0xffffffff) * size) >> 32;
  while (true) {
    // An earlier position of the same id may replace a position, so the id of an entry never changes. Most
    // threads with a frequent id need no atomic access, for which they would wait for each other: they find
    // that an earlier position is there.
    uint32_t found = stale(arguments.first_positions[at]);
    if (found == kNoPosition) found = atomic_exchange_if(arguments.first_positions[at], kNoPosition, i);
    if (found == kNoPosition) break;
    if (arguments.ids[found] == id) {
      if (i < found) atomic_min(arguments.first_positions[at], i);
      break;
    }
    at = at + 1 == size ? 0 : at + 1;
  }
  arguments.entries[i] = static_cast<uint32_t>(at);
}

inline bool is_first(const UniqueArguments& arguments, uint32_t i) {
  return is_kept(arguments, i) && arguments.first_positions[arguments.entries[i]] == i;
}

EMBSTORE_KERNEL(count_first, UniqueArguments) {
  uint32_t firsts;
  sum_before_in_block(is_first(arguments, global_thread()), firsts);
  if (thread_index() == 0) arguments.block_firsts[block_index()] = firsts;
}

// REQUIRES: the same number of threads a block as count_first.
EMBSTORE_KERNEL(number_first, UniqueArguments) {
  const uint32_t i = global_thread();
  const bool first = is_first(arguments, i);
  uint32_t firsts;
  const uint32_t before = sum_before_in_block(first, firsts);
  if (!first) return;
  const uint32_t number = arguments.block_firsts[block_index()] + before;
  arguments.keys[number] = arguments.ids[i];
  arguments.numbers[arguments.entries[i]] = number;
}

EMBSTORE_KERNEL(number_ids, UniqueArguments) {
  const uint32_t i = global_thread();
  if (i >= arguments.ids.count) return;
  if (!is_kept(arguments, i)) {
    arguments.inverse[i] = static_cast<uint32_t>(arguments.ids.count - 1);
    return;
  }
  arguments.inverse[i] = arguments.numbers[arguments.entries[i]];
}

}  // namespace embstore::gpu
