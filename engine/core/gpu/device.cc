#include "gpu/device.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace embstore::gpu {

void Device::launch_runs(const AnyKernel& kernel, uint32_t block_threads, std::span<const uint32_t> blocks,
                         const void* arguments, Stream stream) {
  const auto* next = static_cast<const std::byte*>(arguments);
  while (!blocks.empty()) {
    const std::span<const uint32_t> now = blocks.first(std::min<size_t>(blocks.size(), kernel.max_runs));
    alignas(std::max_align_t) std::array<std::byte, kMaxRunsBytes> runs{};
    std::memcpy(runs.data(), next, now.size() * kernel.argument_bytes);
    std::memcpy(runs.data() + size_t{kernel.max_runs} * kernel.argument_bytes, now.data(), now.size_bytes());
    const Grid grid{std::ranges::max(now), block_threads, static_cast<uint32_t>(now.size())};
    launch_kernel(kernel, grid, runs.data(), stream);
    blocks = blocks.subspan(now.size());
    next += now.size() * kernel.argument_bytes;
  }
}

}  // namespace embstore::gpu
