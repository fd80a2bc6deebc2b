// Collects independent runs of kernels, and launches the runs of one kernel together, whatever number of
// tables they are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gpu/device.h"

namespace embstore::gpu {

class Launches {
 public:
  template <class Arguments>
  void add(const Kernel<Arguments>& kernel, Grid grid, const std::type_identity_t<Arguments>& arguments) {
    add_any(kernel, grid, &arguments);
  }
  // Launches them on the stream and forgets them.
  void put(Device& device, Stream stream);

 private:
  struct Group {
    Device::AnyKernel kernel;
    uint32_t block_threads;
    std::vector<uint32_t> blocks;      // number of blocks of each run
    std::vector<std::byte> arguments;  // those of each run, one after the other
  };

  void add_any(const Device::AnyKernel& kernel, Grid grid, const void* arguments);

  std::vector<Group> groups_;
};

}  // namespace embstore::gpu
