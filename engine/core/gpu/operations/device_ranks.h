// What is kept of rows in a device's memory beside their floats, by slot: counted when they are accessed, as the host's first
// tier counts. See kernels/ranks.h.
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

  // Of the rows in `slots`, of which there are so many as the device reaches at `count`.
  struct Batch {
    Global<RowHeader> headers;
    Global<const uint32_t> slots;
    Global<const uint32_t> count;
  };
  // REQUIRES: no slot twice.
  void put(const Batch& batch, Stream stream);
  // All but the keys.
  void take(const Batch& batch, Stream stream) const;

  // Counts an update of the distinct ids of a batch: occurrences, the version, the span of saves, and the stamp of the last
  // occurrence. `slots` says where they have rows: none twice, kNoSlot where they have none; `places`, which of them
  // are meant. REQUIRES: sums.sort() of the unique batch.
  void add_update(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
                  const CountedUpdate& update, Launches& launches);
  // Counts a served look-up of ids, whose rows are in `slots`: of those in `places`. `order`: where given, the position of each in the
  // caller's batch. REQUIRES: until then, moves wait.
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
