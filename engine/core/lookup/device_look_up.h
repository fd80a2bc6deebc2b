// Look-ups of ids in a device's memory: rows go to device memory too, and the host waits for nothing.
//
// On the caller's stream ids are found in the mirror of the HBM tier, and rows that it has are copied on the device. The ids
// that it hasn't are listed in pinned memory. On a stream beside it, which each look-up in flight has for itself, a function of
// the host reads their rows, and a kernel fetches those; the caller's stream waits for them when all else is done. In serving,
// accesses to the others are counted on the device. A look-up may be of several batches, and a batch of several tables, of which each
// has a part of its ids and leaves the others out. Kernels are launched once for all tables. See gpu/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device_address.h"
#include "row/key_partition.h"
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

  // What is looked up in one table. In serving, `first_stamp` is that of the batch's first id.
  struct Share {
    DeviceLookUp* table;
    BatchPart part;
    std::optional<uint64_t> first_stamp;
    ReadMissing read;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::DeviceAddress out;  // has the rows, dim floats each, when the stream is through
    std::vector<Share> shares;
  };
  // Puts a look-up of all batches on their stream. Waits for no stream. False where the host uses rows of one of the tables for
  // long: nothing was done. Where several tables of a batch fail, the first keeps its error. REQUIRES: all are on one stream.
  static bool try_put(std::span<Batch> batches);

 private:
  class Memory;
  struct ShareInFlight;
  struct MissesOfTable;

  static void put(std::span<ShareInFlight> shares, gpu::Stream stream);
  static void find(std::span<const ShareInFlight> shares, gpu::Stream stream);
  static void copy_found(std::span<const ShareInFlight> shares, gpu::Stream stream);
  // What the missing ids need, on the stream beside the caller's; and that the caller's then waits for.
  static void put_misses(std::span<ShareInFlight> shares);
  static void wait_for_misses(const ShareInFlight& first, gpu::Stream stream);
  // Called by the stream.
  static void read_missing(std::span<const MissesOfTable> of_tables);

  HbmTier& tier_;
  gpu::Device& device_;
  DeviceSteps& steps_;
  const uint32_t dim_;
  StepMemories<Memory> memories_;  // guarded by the turn
};

}  // namespace embstore
