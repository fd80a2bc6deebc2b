// One number that the host knows, where kernels read it: copied only when it changes, as a batch's size seldom does.
#pragma once

#include <cstdint>
#include <optional>

#include "gpu/buffers.h"

namespace embstore::gpu {

class CountOnDevice {
 public:
  explicit CountOnDevice(Device& device) : on_host_(device, 1), on_device_(device, 1) {}

  // REQUIRES: what was put on streams with another number is done.
  Global<const uint32_t> set(uint32_t count, Stream stream) {
    if (count != count_) {
      on_host_[0] = count;
      on_device_.copy_from(on_host_.data(), 1, stream);
      count_ = count;
    }
    return on_device_.constant();
  }

 private:
  PinnedArray<uint32_t> on_host_;
  DeviceArray<uint32_t> on_device_;
  std::optional<uint32_t> count_;
};

}  // namespace embstore::gpu
