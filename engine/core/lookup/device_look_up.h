// Look-ups of ids in a device's memory: rows go to device memory too, and the host waits for nothing.
//
// On the caller's stream, kernels find the ids in the mirror of the HBM tier, and copy the rows that it has.
// They list the missing ids in pinned memory. On another stream, which each look-up in flight has for itself,
// a function of the host reads the rows of these ids, and a kernel fetches them; the caller's stream waits
// for them after all other work. In serving, accesses to rows of the tier are counted on the device. A
// look-up may have several batches, and a batch several tables, the partitions of a variable: its ids are
// then put in the order of the partitions once, so that each table has neighbouring places. Kernels are
// launched once for all tables. See gpu/README.md.
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

  // The ids that aren't in the tier, each as often as it occurs in the batch.
  struct Missing {
    std::span<const int64_t> ids;
    std::span<const uint32_t> positions;  // in the batch; empty if the look-up doesn't serve
    uint64_t hits;                        // how many ids are in the tier
  };
  // Reads the rows of the missing ids, or says where they lie. Called when the stream gets there, by any
  // thread, even if no id is missing. If it throws a DamagedRowsError, the rows of its keys become NaN; if it
  // throws anything else, all missing rows do; the steps keep the error. It must do no more than a function
  // that a stream calls.
  using ReadMissing = std::function<void(const Missing& missing, const RowsOut& rows)>;

  // The part of a look-up that belongs to one table. In serving, `first_stamp` is the stamp of the batch's
  // first id.
  struct Share {
    DeviceLookUp* table;
    std::optional<uint64_t> first_stamp;
    ReadMissing read;
  };
  struct Batch {
    IdsOnDevice ids;
    gpu::DeviceAddress out;     // gets the rows, dim floats each, by the time the stream is through
    std::vector<Share> shares;  // one per table, in the order of the partitions
  };
  // Puts a look-up of all batches on their stream. Waits for no stream. Returns false, and does nothing, if
  // the host uses rows of one of the tables for long. If several tables of a batch fail, the first keeps its
  // error. REQUIRES: all are on one stream.
  static bool try_put(std::span<Batch> batches);

 private:
  using BatchInFlight = InFlight<Batch>;
  struct MissesOfTable;

  std::shared_ptr<LookUpMemory> make_memory(const StepSize& size) const override;

  static void put(std::span<const BatchInFlight> batches);
  static void find(std::span<const BatchInFlight> batches, gpu::Stream stream);
  static void copy_found(std::span<const BatchInFlight> batches, gpu::Stream stream);
  // put_missing() puts the work for missing ids on the look-up's other stream; wait_for_misses() has the
  // caller's stream wait for it.
  static void put_missing(std::span<const BatchInFlight> batches);
  static void wait_for_misses(const LookUpMemory& memory, gpu::Device& device, gpu::Stream stream);
  // Called by the stream.
  static void read_missing(std::span<const MissesOfTable> table_misses);

  const uint32_t dim_;
};

}  // namespace embstore
