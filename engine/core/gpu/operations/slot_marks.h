// A mark for each slot of a device's memory: see kernels/marks.h.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/marks.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class SlotMarks {
 public:
  // None is marked once `stream` has got there.
  SlotMarks(Device& device, uint32_t slots, Stream stream) : device_(device), marks_(device, slots) {
    marks_.fill(0, stream);
  }

  uint64_t bytes() const { return marks_.bytes(); }

  // `count`, one number that the device reaches, says how many slots there are. REQUIRES: no slot twice.
  void set(bool is_marked, Global<const uint32_t> slots, Global<const uint32_t> count, Stream stream) {
    Launches launches;
    add_set(is_marked, slots, count, launches);
    launches.put(device_, stream);
  }
  void add_set(bool is_marked, Global<const uint32_t> slots, Global<const uint32_t> count,
               Launches& launches) {
    if (slots.count == 0) return;
    launches.add(set_marks, Grid::of(slots.count, kMostBlockThreads),
                 {marks_.global(), slots, count, static_cast<uint8_t>(is_marked)});
  }
  // Those of `slots` that are marked go to `marked`, and their number to `marked_count`, which is 0 before.
  void add_list(Global<const uint32_t> slots, Global<const uint32_t> count, Global<uint32_t> marked,
                Global<uint32_t> marked_count, Launches& launches) const {
    if (slots.count == 0) return;
    launches.add(list_marked, Grid::of(slots.count, kMostBlockThreads),
                 {marks_.constant(), slots, count, marked, marked_count});
  }

 private:
  Device& device_;
  DeviceArray<uint8_t> marks_;
};

}  // namespace embstore::gpu
