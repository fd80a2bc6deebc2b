// Look-ups of ids in a device's memory: rows go to device memory too, and the host waits for nothing.
//
// On the caller's stream ids are found in the mirror of the HBM tier, and rows that it has are copied on the device. The ids
// that it hasn't are listed in pinned memory. On a stream beside it, which each look-up in flight has for itself, a function of
// the host reads their rows, and a kernel fetches those; the caller's stream waits for them when all else is done. In serving,
// accesses to the others are counted on the device. See gpu/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "gpu/device_address.h"
#include "tiers/hbm/device_steps.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_memories.h"

namespace embstore {

class DeviceLookUp {
 public:
  // Both outlive this.
  DeviceLookUp(HbmTier& tier, DeviceSteps& steps, size_t dim);
  ~DeviceLookUp();
  DeviceLookUp(const DeviceLookUp&) = delete;
  DeviceLookUp& operator=(const DeviceLookUp&) = delete;

  // The ids that aren't in the tier, each as often as it occurs.
  struct Missing {
    std::span<const int64_t> ids;
    std::span<const uint32_t> positions;  // in the batch; none of a look-up for training
    uint64_t hits;                        // how many ids are in the tier
  };
  // Reads their rows. Called when the stream gets there, by any thread, with none missing too. It may throw: of
  // DamagedRowsError's keys the rows, else all of them, become NaN, and the steps keep the error. It must do no more than a
  // function that a stream calls.
  using ReadMissing = std::function<void(const Missing& missing, float* rows)>;

  // Puts a look-up on ids.stream: `out` has the rows, dim floats each, when the stream is through. Waits for no stream. False
  // where the host uses rows for long: nothing was done. `first_stamp`: of a look-up for serving, that of its first id.
  bool try_put(const IdsOnDevice& ids, gpu::DeviceAddress out, std::optional<uint64_t> first_stamp,
               ReadMissing read);

 private:
  class Memory;

  void put(Memory& memory, const IdsOnDevice& ids, gpu::DeviceAddress out,
           std::optional<uint64_t> first_stamp, ReadMissing read);
  // What the missing ids need, on the stream beside the caller's; and that the caller's then waits for.
  void put_misses(Memory& memory, uint32_t count, gpu::DeviceAddress out, bool is_served, ReadMissing read);
  void wait_for_misses(const Memory& memory, gpu::Stream stream);
  // Called by the stream.
  static void read_missing(const Memory& memory, const Missing& missing, const ReadMissing& read,
                           DeviceSteps& steps, size_t dim);

  HbmTier& tier_;
  gpu::Device& device_;
  DeviceSteps& steps_;
  const uint32_t dim_;
  StepMemories<Memory> memories_;  // guarded by the turn
};

}  // namespace embstore
