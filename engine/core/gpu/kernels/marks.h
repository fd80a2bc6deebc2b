// Marks by slot: of rows that the host wants to be told of before a step changes them.
#pragma once

#include "gpu/kernels/mirror.h"

namespace embstore::gpu {

struct SetMarksArguments {
  Global<uint8_t> marks;
  Global<const uint32_t> slots;  // none twice; kNoSlot is left out
  Global<const uint32_t> count;  // one: how many of `slots` there are
  uint8_t mark;
};

EMBSTORE_KERNEL(set_marks, SetMarksArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0] || arguments.slots[i] == kNoSlot) return;
  arguments.marks[arguments.slots[i]] = arguments.mark;
}

struct ListMarkedArguments {
  Global<const uint8_t> marks;
  Global<const uint32_t> slots;   // of the batch; kNoSlot is left out
  Global<const uint32_t> count;   // one: how many of `slots` there are
  Global<uint32_t> marked;        // those of them that are marked, in any order
  Global<uint32_t> marked_count;  // one, 0 before
};

EMBSTORE_KERNEL(list_marked, ListMarkedArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0] || arguments.slots[i] == kNoSlot) return;
  const uint32_t slot = arguments.slots[i];
  if (arguments.marks[slot] == 0) return;
  arguments.marked[atomic_add(arguments.marked_count[0], uint32_t{1})] = slot;
}

}  // namespace embstore::gpu
