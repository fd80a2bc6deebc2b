#include "gpu/operations/launches.h"

#include <algorithm>
#include <string_view>

namespace embstore::gpu {

void Launches::add_any(const Device::AnyKernel& kernel, Grid grid, const void* arguments) {
  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
    return std::string_view(other.kernel.name) == kernel.name && other.block_threads == grid.block_threads;
  });
  if (group == groups_.end()) group = groups_.insert(group, {kernel, grid.block_threads, {}, {}});
  group->blocks.push_back(grid.blocks);
  const auto* const first = static_cast<const std::byte*>(arguments);
  group->arguments.insert(group->arguments.end(), first, first + kernel.argument_bytes);
}

void Launches::put(Device& device, Stream stream) {
  for (const Group& group : groups_) {
    device.launch_runs(group.kernel, group.block_threads, group.blocks, group.arguments.data(), stream);
  }
  groups_.clear();
}

}  // namespace embstore::gpu
