// Batches that are asked for ahead by ids in a device's memory: the host waits for nothing.
//
// On the caller's stream the ids are copied to pinned memory, and a function of the host takes them from there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "tiers/hbm/device_steps.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_memories.h"

namespace embstore {

class DeviceWishes {
 public:
  // Both outlive this.
  DeviceWishes(gpu::Device& device, DeviceSteps& steps) : device_(device), steps_(steps) {}
  ~DeviceWishes();
  DeviceWishes(const DeviceWishes&) = delete;
  DeviceWishes& operator=(const DeviceWishes&) = delete;

  // Called when the stream gets there, by any thread. It must do no more than a function that a stream calls. If it throws, the
  // steps keep the error.
  using TakeIds = std::function<void(std::span<const int64_t> ids)>;
  // Puts it on ids.stream. Waits for no stream. False where the thread uses rows: nothing was done.
  bool try_put(const IdsOnDevice& ids, TakeIds take);

 private:
  class Memory;

  gpu::Device& device_;
  DeviceSteps& steps_;
  StepMemories<Memory> memories_;  // guarded by the turn
};

}  // namespace embstore
