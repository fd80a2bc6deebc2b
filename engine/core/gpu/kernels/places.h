// Which places of a batch a run of a kernel goes over. Of a batch for several tables, a table has neighbouring places; the device alone
// knows where they begin and end.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

struct Places {
  Global<const uint32_t> first = {};  // one; none: 0
  Global<const uint32_t> end = {};    // one; none: after all that there may be
  uint32_t tables = 1;                // that share the batch: each has about as many of its places
};

// The part of table number `table`, of as many as there are bounds but one.
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

// Calls visit(place) for the thread's places, where each has `threads` numbers: visit(place, number). Runs of several tables have fewer
// blocks than the batch would take, so a thread may have many.
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
  Global<const uint32_t> count;          // one: how many of `values` there are; none: all
  Global<const uint32_t> from;           // the least value of each part; none: the part's number
  Global<uint32_t> bounds;               // where each part begins in `values`
  Global<uint32_t> bounds_on_host = {};  // likewise, in pinned memory, where they are wanted
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
