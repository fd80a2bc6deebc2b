// Ids that the caller has in a device's memory.
#pragma once

#include <cstdint>

#include "gpu/device.h"
#include "gpu/device_address.h"

namespace embstore {

struct IdsOnDevice {
  gpu::DeviceAddress ids;  // int64
  uint32_t count = 0;
  gpu::Stream stream = {};  // on which the ids, and what belongs to them, are used
};

}  // namespace embstore
