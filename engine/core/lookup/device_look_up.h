// Look-ups of ids in a device's memory: rows go to device memory too, and the host waits for nothing.
//
// On the caller's stream ids are found in the mirror of the HBM tier, and rows that it has are copied on the device. The ids
// that it hasn't are listed in pinned memory; a function of the host, for which the stream waits, reads their rows, and a kernel
// fetches those. See gpu/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.h"
#include "gpu/device_address.h"
#include "tiers/hbm/device_steps.h"
#include "tiers/hbm/hbm_tier.h"

namespace embstore {

// Arrays in device memory, and the stream on which they are used.
struct IdsOnDevice {
  gpu::DeviceAddress ids;  // int64
  uint32_t count = 0;
  gpu::Stream stream = {};
};

class DeviceLookUp {
 public:
  // Both outlive this.
  DeviceLookUp(HbmTier& tier, DeviceSteps& steps, size_t dim);
  ~DeviceLookUp();
  DeviceLookUp(const DeviceLookUp&) = delete;
  DeviceLookUp& operator=(const DeviceLookUp&) = delete;

  // Reads the rows of ids that aren't in the tier, an id each time that it occurs; `hits` others are. Called when the stream
  // gets there, by any thread, with none missing too. It may throw: of DamagedRowsError's keys the rows, else all of them,
  // become NaN, and the steps keep the error. It must do no more than a function that a stream calls.
  using ReadMissing = std::function<void(std::span<const int64_t> missing, uint64_t hits, float* rows)>;

  // Puts a look-up on ids.stream: `out` has the rows, dim floats each, when the stream is through. Waits for no stream. False
  // where the host uses rows for long: nothing was done.
  bool try_put(const IdsOnDevice& ids, gpu::DeviceAddress out, ReadMissing read);

 private:
  class Memory;

  void put(Memory& memory, const IdsOnDevice& ids, gpu::DeviceAddress out, ReadMissing read);
  // Called by the stream.
  static void read_missing(const Memory& memory, const ReadMissing& read, DeviceSteps& steps, uint32_t ids,
                           size_t dim);
  // That of a step which has ended, if there is one large enough.
  std::shared_ptr<Memory> take_memory(uint32_t ids);

  HbmTier& tier_;
  gpu::Device& device_;
  DeviceSteps& steps_;
  const uint32_t dim_;
  std::vector<std::shared_ptr<Memory>> memories_;  // guarded by the turn
};

}  // namespace embstore
