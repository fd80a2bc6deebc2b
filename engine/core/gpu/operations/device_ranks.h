// The data that a device keeps of its rows beside their floats, by slot. Accesses are counted as in the
// host's first tier. See kernels/ranks.h.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/ranks.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class DeviceRanks {
 public:
  DeviceRanks(Device& device, uint32_t slots);

  uint64_t bytes() const { return metas_.bytes() + served_.bytes() + stamps_.bytes(); }

  // The headers of the rows in `slots`. `count` is one number in memory that the device reaches: how many
  // rows there are.
  struct Batch {
    Global<RowHeader> headers;
    Global<const uint32_t> slots;
    Global<const uint32_t> count;
  };
  // Copies headers to the device. REQUIRES: no slot twice.
  void put(const Batch& batch, Stream stream);
  // Copies headers from the device, all but their keys.
  void take(const Batch& batch, Stream stream) const;

  // Counts an update of the distinct ids of a batch: occurrences, the version, the save span, and the stamp
  // of the last occurrence. `slots` has the ids' slots, none twice, and kNoSlot for ids without a row; only
  // those in `places` are counted. REQUIRES: sums.sort() of the unique batch.
  void add_update(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
                  const CountedUpdate& update, Launches& launches);
  // Counts a served look-up of ids whose rows are in `slots`, those in `places` alone. `order`, if given, is
  // each id's position in the caller's batch. REQUIRES: moves wait until the kernel has run.
  void add_hits(Global<const uint32_t> slots, const Places& places, Global<const uint32_t> order,
                uint64_t first_stamp, Launches& launches);

 private:
  RankArrays arrays() const { return {metas_.global(), served_.global(), stamps_.global()}; }
  void launch(const Kernel<CopyHeadersArguments>& kernel, const Batch& batch, Stream stream) const;

  Device& device_;
  DeviceArray<RowMeta> metas_;
  DeviceArray<uint64_t> served_;
  DeviceArray<uint64_t> stamps_;
};

}  // namespace embstore::gpu
