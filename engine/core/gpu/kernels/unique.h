// The distinct ids of a batch in the order of their first occurrence, and which of them each id is.
//
// 0. clear_table
// 1. claim_ids: each id finds its entry of an open-addressed table, which ends with the first position of that id.
// 2. count_first, scan_counts: positions that come first in the batch are counted, block by block.
// 3. number_first: they get their numbers, in order.
// 4. number_ids: every id takes the number from its entry.
// An id that is left out takes a number that no distinct id has: it comes last when the batch is sorted by numbers.
// Kernels end between the steps, since a thread may only rely on what threads of other blocks wrote before.
#pragma once

#include "gpu/kernels/scan.h"
#include "row/key_hash.h"

namespace embstore::gpu {

inline constexpr uint32_t kNoPosition = 0xffffffff;

struct UniqueArguments {
  Global<const int64_t> ids;
  Global<const int64_t> kept;        // of each id: 0 leaves it out of the batch; none: all are kept
  Global<const uint32_t> id_count;   // one: how many of `ids` there are, others are left out, too; none: all
  Global<uint32_t> first_positions;  // the table, more entries than ids; all kNoPosition at first
  Global<uint32_t> numbers;          // beside it: of the distinct id
  Global<uint32_t> entries;          // of each id, in the table
  Global<uint32_t> block_firsts;     // of each block: its first occurrences, then those before it
  Global<int64_t> keys;              // the distinct ids
  Global<uint32_t>
      inverse;  // of each id: its place in `keys`; of one that is left out: the last that there might be
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
    // A position may be replaced by an earlier one of the same id, so an entry's id never changes. Most threads whose id occurs
    // often need no atomic access, for which they would wait for each other: an earlier one has been there.
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

// REQUIRES: blocks of as many threads as count_first's.
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
