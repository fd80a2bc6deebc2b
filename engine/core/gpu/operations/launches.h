// Runs of kernels of which none needs another: those of one kernel are launched as one, however many tables they are of.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpu/device.h"

namespace embstore::gpu {

class Launches {
 public:
  template <class Arguments>
  void add(const Kernel<Arguments>& kernel, Grid grid, const std::type_identity_t<Arguments>& arguments) {
    for (const auto& group : groups_) {
      if (group->name == kernel.name && group->block_threads == grid.block_threads) {
        return static_cast<GroupOf<Arguments>&>(*group).runs.push_back({grid.blocks, arguments});
      }
    }
    auto group = std::make_unique<GroupOf<Arguments>>(kernel, grid.block_threads);
    group->runs.push_back({grid.blocks, arguments});
    groups_.push_back(std::move(group));
  }
  // Puts them on the stream. None is left then.
  void put(Device& device, Stream stream) {
    for (const auto& group : groups_) group->put(device, stream);
    groups_.clear();
  }

 private:
  struct Group {
    Group(std::string_view of, uint32_t threads) : name(of), block_threads(threads) {}
    virtual ~Group() = default;
    virtual void put(Device& device, Stream stream) const = 0;

    const std::string_view name;  // which says of what type the arguments are
    const uint32_t block_threads;
  };
  template <class Arguments>
  struct GroupOf final : Group {
    GroupOf(const Kernel<Arguments>& of, uint32_t threads) : Group(of.name, threads), kernel(of) {}
    void put(Device& device, Stream stream) const override {
      device.launch_runs(kernel, this->block_threads, std::span<const Device::Run<Arguments>>(runs), stream);
    }

    const Kernel<Arguments> kernel;
    std::vector<Device::Run<Arguments>> runs;
  };

  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace embstore::gpu
