// Look-ups of ids in a device's memory: rows go to device memory too, and the host waits for nothing.
//
// On the caller's stream ids are found in the mirror of the HBM tier, and rows that it has are copied on the device. The ids
// that it hasn't are listed in pinned memory. On a stream beside it, which each look-up in flight has for itself, a function of
// the host reads their rows, and a kernel fetches those; the caller's stream waits for them when all else is done. In serving,
// accesses to the others are counted on the device. A look-up may be of several batches, and a batch of several tables, a variable's
// partitions: its ids are put in their order once, so that each has neighbouring places. Kernels are launched once for all tables. See
// gpu/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device_address.h"
#include "lookup/look_up.h"
#include "tiers/hbm/ids_on_device.h"
#include "tiers/hbm/step_maker.h"

namespace embstore {

class LookUpMemory;

class DeviceLookUp final : public StepMaker<LookUpMemory> {
 public:
  DeviceLookUp(HbmTier& tier, DeviceSteps& steps, size_t dim);
  ~DeviceLookUp() override;

  // The ids that aren't in the tier, each as often as it occurs.
  struct Missing {
    std::span<const int64_t> ids;
    std::span<const uint32_t> positions;  // in the batch; none of a look-up for training
    uint64_t hits;                        // how many ids are in the tier
  };
  // Reads their rows, or says where they lie. Called when the stream gets there, by any thread, with none missing too. It may throw: of
  // DamagedRowsError's keys the rows, else all of them, become NaN, and the steps keep the error. It must do no more than a
  // function that a stream calls.
  using ReadMissing = std::function<void(const Missing& missing, const RowsOut& rows)>;

  // What is looked up in one table. In serving, `first_stamp` is that of the batch's first id.
  struct Share {
    DeviceLookUp* table;
    std::optional<uint64_t> first_stamp;
    ReadMissing read;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::DeviceAddress out;     // has the rows, dim floats each, when the stream is through
    std::vector<Share> shares;  // of the tables, in the order of their partitions
  };
  // Puts a look-up of all batches on their stream. Waits for no stream. False where the host uses rows of one of the tables for
  // long: nothing was done. Where several tables of a batch fail, the first keeps its error. REQUIRES: all are on one stream.
  static bool try_put(std::span<Batch> batches);

 private:
  using BatchInFlight = InFlight<Batch>;
  struct MissesOfTable;

  std::shared_ptr<LookUpMemory> make_memory(const StepSize& size) const override;

  static void put(std::span<const BatchInFlight> batches);
  static void find(std::span<const BatchInFlight> batches, gpu::Stream stream);
  static void copy_found(std::span<const BatchInFlight> batches, gpu::Stream stream);
  // What the missing ids need, on the stream beside the caller's; and that the caller's then waits for.
  static void put_misses(std::span<const BatchInFlight> batches);
  static void wait_for_misses(const LookUpMemory& of, gpu::Device& device, gpu::Stream stream);
  // Called by the stream.
  static void read_missing(std::span<const MissesOfTable> of_tables);

  const uint32_t dim_;
};

}  // namespace embstore
