// Ids that a caller has in a device's memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/device_address.h"

namespace embstore {

struct IdsOnDevice {
  gpu::DeviceAddress ids;  // int64
  uint32_t count = 0;
  gpu::Stream stream = {};  // on which they are used, and what belongs to them
};

}  // namespace embstore
