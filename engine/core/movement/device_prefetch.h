// Prefetching of batches whose ids are in a device's memory: the host waits for nothing.
//
// The caller's stream copies the ids to pinned memory, from where a function of the host takes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_maker.h"

namespace embstore {

class PrefetchMemory;

class DevicePrefetch final : public StepMaker<PrefetchMemory> {
 public:
  DevicePrefetch(HbmTier& tier, DeviceSteps& steps) : StepMaker(tier, steps) {}
  ~DevicePrefetch() override;

  // Called when the stream gets there, by any thread. It must do no more than a function that a stream calls.
  // If it throws, the steps of the first table keep the error.
  using TakeIds = std::function<void(std::span<const int64_t> ids)>;
  struct Share {
    DevicePrefetch* table;
  };
  struct Batch {
    IdsOnDevice ids;
    std::vector<Share> shares;  // of the tables whose rows are prefetched
    TakeIds take;
  };
  // Puts the batch on its stream. Waits for no stream. Returns false if the thread uses rows: nothing was
  // done, and the batch is as it was.
  static bool try_put(Batch& batch);

 private:
  std::shared_ptr<PrefetchMemory> make_memory(const StepSize& size) const override;
  static void put(const InFlight<Batch>& one);
};

}  // namespace embstore
