// A mark for each slot of a device's memory: see kernels/marks.h.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/places.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class SlotMarks {
 public:
  // No slot is marked at first. Waits for `stream`.
  SlotMarks(Device& device, uint32_t slots, Stream stream);

  uint64_t bytes() const { return marks_.bytes(); }

  // Sets or clears the marks of the slots in these places of `slots`. REQUIRES: no slot twice.
  void set(bool is_marked, Global<const uint32_t> slots, const Places& places, Stream stream);
  void add_set(bool is_marked, Global<const uint32_t> slots, const Places& places, Launches& launches);
  // Writes those slots that are marked to `marked`, from their first place on, and their number to
  // `marked_count`, which is 0 before.
  void add_list(Global<const uint32_t> slots, const Places& places, Global<uint32_t> marked,
                Global<uint32_t> marked_count, Launches& launches) const;

 private:
  Device& device_;
  DeviceArray<uint8_t> marks_;
};

}  // namespace embstore::gpu
