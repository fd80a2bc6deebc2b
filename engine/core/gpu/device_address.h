// An address in a device's memory. Kernels take it in their arguments, so NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore::gpu {

// The host can't follow it: there is no conversion to a pointer.
struct DeviceAddress {
  uint64_t value = 0;  // 0: no address

  constexpr explicit operator bool() const { return value != 0; }
  constexpr bool operator==(const DeviceAddress& other) const { return value == other.value; }
  constexpr DeviceAddress operator+(uint64_t bytes) const { return {value + bytes}; }
};

}  // namespace embstore::gpu
