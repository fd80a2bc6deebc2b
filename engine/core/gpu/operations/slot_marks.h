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

  // Of `slots`, those in these places. REQUIRES: no slot twice.
  void set(bool is_marked, Global<const uint32_t> slots, const Places& places, Stream stream) {
    Launches launches;
    add_set(is_marked, slots, places, launches);
    launches.put(device_, stream);
  }
  void add_set(bool is_marked, Global<const uint32_t> slots, const Places& places, Launches& launches) {
    if (slots.count == 0) return;
    const Grid grid = Grid::over(slots.count, kMostBlockThreads, places.tables);
    launches.add(set_marks, grid,
                 {marks_.global(), slots, places, grid.blocks, static_cast<uint8_t>(is_marked)});
  }
  // Those that are marked go to `marked`, from their first place on, and their number to `marked_count`, which is 0 before.
  void add_list(Global<const uint32_t> slots, const Places& places, Global<uint32_t> marked,
                Global<uint32_t> marked_count, Launches& launches) const {
    if (slots.count == 0) return;
    const Grid grid = Grid::over(slots.count, kMostBlockThreads, places.tables);
    launches.add(list_marked, grid, {marks_.constant(), slots, places, grid.blocks, marked, marked_count});
  }

 private:
  Device& device_;
  DeviceArray<uint8_t> marks_;
};

}  // namespace embstore::gpu
