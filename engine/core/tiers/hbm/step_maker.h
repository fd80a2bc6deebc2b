// The common part of all kinds of steps on a device. A step has several batches on one stream, and a batch
// several tables, a variable's partitions, which share its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "errors/error.h"
#include "gpu/device.h"
#include "tiers/hbm/device_steps.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_memories.h"

namespace embstore {

// One table's part in such steps. `Memory` is a StepInFlight that has what a batch needs while its step is in
// flight.
template <class Memory>
class StepMaker {
 public:
  // Both arguments outlive this.
  StepMaker(HbmTier& tier, DeviceSteps& steps) : tier_(tier), device_(tier.device()), steps_(steps) {}
  virtual ~StepMaker() = default;
  StepMaker(const StepMaker&) = delete;
  StepMaker& operator=(const StepMaker&) = delete;

 protected:
  // A batch has `ids`, and `shares`, each of which has its `table`, a StepMaker.
  template <class Batch>
  struct InFlight {
    Batch* batch;
    std::shared_ptr<Memory> memory;  // memory of the batch's first table
  };
  // Calls put(in_flight), which puts a step of all batches on their stream, ordered with the steps of all
  // tables. Waits for no stream, unless too many steps are in flight. Returns false, and does nothing, if one
  // of the tables has a long use by the host, if this thread uses rows of one, or if is_possible() returns
  // false, which is called when no use is under way. Throws Error(kStoreFull) if the device has too little
  // memory, and then has done nothing. REQUIRES: all batches are on one stream.
  template <class Batch, class Put, class IsPossible>
  static bool try_put(std::span<Batch> batches, DeviceSteps::Effect effect, const Put& put,
                      const IsPossible& is_possible) {
    const gpu::Stream stream = batches.front().ids.stream;
    std::vector<DeviceSteps*> tables;
    for_each_table(batches, [&](StepMaker& table) { tables.push_back(&table.steps_); });
    DeviceSteps::Turns turns(tables, stream, effect);
    if (turns.is_refused()) return false;
    std::vector<InFlight<Batch>> in_flight;
    std::vector<DeviceSteps::StepOfTable> steps;
    for (Batch& batch : batches) {
      StepMaker& first = *batch.shares.front().table;
      const StepSize size{batch.ids.count, static_cast<uint32_t>(batch.shares.size())};
      in_flight.push_back({&batch, first.take_memory(size)});
      for (auto& share : batch.shares) steps.push_back({&maker(share).steps_, in_flight.back().memory});
    }
    if (!is_possible()) return false;
    // As long as the device works, nothing between this and the step may fail: threads that change rows wait
    // for steps, not for this.
    if (effect != DeviceSteps::Effect::kUsesNone) {
      for_each_table(batches, [&](StepMaker& table) { table.tier_.sync_mirror_to(stream); });
    }
    turns.put(steps, stream, [&] { put(std::span<const InFlight<Batch>>(in_flight)); });
    return true;
  }
  template <class Batch, class Put>
  static bool try_put(std::span<Batch> batches, DeviceSteps::Effect effect, const Put& put) {
    return try_put(batches, effect, put, [] { return true; });
  }

  HbmTier& tier_;
  gpu::Device& device_;
  DeviceSteps& steps_;

 private:
  virtual std::shared_ptr<Memory> make_memory(const StepSize& size) const = 0;

  std::shared_ptr<Memory> take_memory(const StepSize& size) {
    try {
      return memories_.take(size, [this](const StepSize& made) { return make_memory(made); });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kStoreFull) throw;
      throw Error(ErrorKind::kStoreFull, "a batch of " + std::to_string(size.ids) +
                                             " ids doesn't fit beside the rows of HBM: " + error.what() +
                                             "; or take smaller batches");
    }
  }

  template <class Share>
  static StepMaker& maker(const Share& share) {
    return *share.table;
  }
  template <class Batch, class Visit>
  static void for_each_table(std::span<Batch> batches, const Visit& visit) {
    for (const Batch& batch : batches) {
      for (const auto& share : batch.shares) visit(maker(share));
    }
  }

  StepMemories<Memory> memories_;  // guarded by the turns
};

}  // namespace embstore
