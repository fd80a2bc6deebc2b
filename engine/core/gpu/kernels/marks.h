// Marks by slot, for rows whose changes the host wants to know of before a step makes them.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"

namespace embstore::gpu {

struct SetMarksArguments {
  Global<uint8_t> marks;
  Global<const uint32_t> slots;  // none twice; kNoSlot is left out
  Places places;                 // in `slots`
  uint32_t blocks;               // the run's number of blocks
  uint8_t mark;
};

EMBSTORE_KERNEL(set_marks, SetMarksArguments) {
  for_each_place(arguments.places, arguments.slots.count, arguments.blocks, [&](uint64_t i) {
    if (arguments.slots[i] != kNoSlot) arguments.marks[arguments.slots[i]] = arguments.mark;
  });
}

struct ListMarkedArguments {
  Global<const uint8_t> marks;
  Global<const uint32_t> slots;   // the batch's slots; kNoSlot is left out
  Places places;                  // in `slots`
  uint32_t blocks;                // the run's number of blocks
  Global<uint32_t> marked;        // the marked slots of the batch, in any order, from the first place on
  Global<uint32_t> marked_count;  // one element, 0 before
};

EMBSTORE_KERNEL(list_marked, ListMarkedArguments) {
  const uint64_t first = first_of(arguments.places);
  for_each_place(arguments.places, arguments.slots.count, arguments.blocks, [&](uint64_t i) {
    const uint32_t slot = arguments.slots[i];
    if (slot == kNoSlot || arguments.marks[slot] == 0) return;
    arguments.marked[first + atomic_add(arguments.marked_count[0], uint32_t{1})] = slot;
  });
}

}  // namespace embstore::gpu
