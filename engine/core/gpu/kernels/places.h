// The places of a batch that a run of a kernel goes over. In a batch for several tables, each table has a
// range of neighbouring places; only the device knows where it begins and ends.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

struct Places {
  Global<const uint32_t> first = {};  // one element; empty: 0
  Global<const uint32_t> end = {};    // one element; empty: the end of the arrays
  uint32_t tables = 1;                // number of tables that share the batch, each with about as many places
};

// Returns the places of table number `table`. `bounds` has one element more than there are tables.
inline Places places_of(Global<const uint32_t> bounds, uint32_t table) {
  const auto bound = [&](uint32_t number) -> Global<const uint32_t> {
    return {bounds.address + number * sizeof(uint32_t), 1};
  };
  return {bound(table), bound(table + 1), static_cast<uint32_t>(bounds.count - 1)};
}

inline uint64_t first_of(const Places& places) { return places.first.count == 0 ? 0 : places.first[0]; }
inline uint64_t end_of(const Places& places, uint64_t most) {
  return places.end.count == 0 ? most : places.end[0];
}

// Calls visit(place, number) for the thread's share of the places, each of which has `threads` numbers; the
// other form calls visit(place). With several tables a run has fewer blocks than the whole batch would take,
// so a thread may have many places.
template <class Visit>
inline void for_each_place(const Places& places, uint64_t most, uint32_t blocks, uint32_t threads,
                           const Visit& visit) {
  const uint64_t first = first_of(places);
  const uint64_t end = (end_of(places, most) - first) * threads;
  const uint64_t step = uint64_t{blocks} * block_threads();
  for (uint64_t i = uint64_t{block_index()} * block_threads() + thread_index(); i < end; i += step) {
    visit(first + i / threads, static_cast<uint32_t>(i % threads));
  }
}
template <class Visit>
inline void for_each_place(const Places& places, uint64_t most, uint32_t blocks, const Visit& visit) {
  const uint64_t end = end_of(places, most);
  const uint64_t step = uint64_t{blocks} * block_threads();
  for (uint64_t i = first_of(places) + uint64_t{block_index()} * block_threads() + thread_index(); i < end;
       i += step) {
    visit(i);
  }
}

struct FindBoundsArguments {
  Global<const uint32_t> values;         // ascending
  Global<const uint32_t> count;          // one element: how many of `values` there are; empty: all
  Global<const uint32_t> from;           // the least value of each part; empty: the part's number
  Global<uint32_t> bounds;               // each part's begin in `values`
  Global<uint32_t> bounds_on_host = {};  // if given: the same, in pinned memory
};

EMBSTORE_KERNEL(find_bounds, FindBoundsArguments) {
  const uint64_t part = global_thread();
  if (part >= arguments.bounds.count) return;
  const uint32_t from = arguments.from.count == 0 ? static_cast<uint32_t>(part) : arguments.from[part];
  uint64_t low = 0;
  uint64_t high = arguments.count.count == 0 ? arguments.values.count : arguments.count[0];
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (arguments.values[middle] < from) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  arguments.bounds[part] = static_cast<uint32_t>(low);
  if (arguments.bounds_on_host.count != 0) arguments.bounds_on_host[part] = static_cast<uint32_t>(low);
}

}  // namespace embstore::gpu
