#include "gpu/operations/slot_marks.h"

#include "gpu/kernels/marks.h"

namespace embstore::gpu {

SlotMarks::SlotMarks(Device& device, uint32_t slots, Stream stream) : device_(device), marks_(device, slots) {
  marks_.fill(0, stream);
  device_.synchronise(stream);  // the caller may fail and free the marks, so the fill must have ended
}

void SlotMarks::set(bool is_marked, Global<const uint32_t> slots, const Places& places, Stream stream) {
  Launches launches;
  add_set(is_marked, slots, places, launches);
  launches.put(device_, stream);
}

void SlotMarks::add_set(bool is_marked, Global<const uint32_t> slots, const Places& places,
                        Launches& launches) {
  if (slots.count == 0) return;
  const Grid grid = Grid::over(slots.count, kMaxBlockThreads, places.tables);
  launches.add(set_marks, grid,
               {marks_.global(), slots, places, grid.blocks, static_cast<uint8_t>(is_marked)});
}

void SlotMarks::add_list(Global<const uint32_t> slots, const Places& places, Global<uint32_t> marked,
                         Global<uint32_t> marked_count, Launches& launches) const {
  if (slots.count == 0) return;
  const Grid grid = Grid::over(slots.count, kMaxBlockThreads, places.tables);
  launches.add(list_marked, grid, {marks_.constant(), slots, places, grid.blocks, marked, marked_count});
}

}  // namespace embstore::gpu
