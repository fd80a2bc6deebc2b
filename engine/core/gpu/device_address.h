// An address in a device's memory, and a typed array that begins there. Both are what kernels take as arguments, so
// NVRTC compiles this file too.
#pragma once

#include <cstdint>

namespace embstore::gpu {

// The host can't follow it: no conversion makes a pointer of it.
struct DeviceAddress {
  uint64_t value = 0;  // 0: none

  constexpr explicit operator bool() const { return value != 0; }
  constexpr bool operator==(const DeviceAddress& other) const { return value == other.value; }
  constexpr DeviceAddress operator+(uint64_t bytes) const { return {value + bytes}; }
};

}  // namespace embstore::gpu
