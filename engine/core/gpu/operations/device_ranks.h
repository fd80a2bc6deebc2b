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
  DeviceRanks(Device& device, uint32_t slots)
      : device_(device), metas_(device, slots), served_(device, slots), stamps_(device, slots) {}

  uint64_t bytes() const { return metas_.bytes() + served_.bytes() + stamps_.bytes(); }

  // Of the rows in `slots`, of which there are so many as the device reaches at `count`.
  struct Batch {
    Global<RowHeader> headers;
    Global<const uint32_t> slots;
    Global<const uint32_t> count;
  };
  // REQUIRES: no slot twice.
  void put(const Batch& batch, Stream stream) { launch(put_headers, batch, stream); }
  // All but the keys.
  void take(const Batch& batch, Stream stream) const { launch(take_headers, batch, stream); }

  // Counts an update of the distinct ids of a batch: occurrences, the version, the span of saves, and the stamp of the last
  // occurrence. `slots` says where they have rows: none twice, kNoSlot where they have none; `places`, which of them
  // are meant. REQUIRES: sums.sort() of the unique batch.
  void count_update(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
                    const CountedUpdate& update, Stream stream) {
    Launches launches;
    add_update(slots, places, sums, update, launches);
    launches.put(device_, stream);
  }
  void add_update(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
                  const CountedUpdate& update, Launches& launches) {
    if (slots.count == 0) return;
    const Grid grid = Grid::over(slots.count, kMostBlockThreads, places.tables);
    launches.add(count_updates_of_rows, grid,
                 {arrays(), slots, places, grid.blocks, sums.positions(), sums.begins().constant(),
                  sums.ends().constant(), update});
  }
  // Counts a served look-up of ids, whose rows are in `slots`: of those in `places`. `order`: where given, the position of each in the
  // caller's batch. REQUIRES: until then, moves wait.
  void count_hits(Global<const uint32_t> slots, uint64_t first_stamp, Stream stream) {
    Launches launches;
    add_hits(slots, {}, {}, first_stamp, launches);
    launches.put(device_, stream);
  }
  void add_hits(Global<const uint32_t> slots, const Places& places, Global<const uint32_t> order,
                uint64_t first_stamp, Launches& launches) {
    if (slots.count == 0) return;
    const Grid grid =
        Grid::over((slots.count + kHitsAThread - 1) / kHitsAThread, kMostBlockThreads, places.tables);
    launches.add(count_hits_of_rows, grid, {arrays(), slots, places, grid.blocks, order, first_stamp});
  }

 private:
  RankArrays arrays() const { return {metas_.global(), served_.global(), stamps_.global()}; }
  void launch(const Kernel<CopyHeadersArguments>& kernel, const Batch& batch, Stream stream) const {
    if (batch.slots.count == 0) return;
    device_.launch(kernel, Grid::of(batch.slots.count, kMostBlockThreads),
                   {arrays(), batch.slots, batch.count, batch.headers}, stream);
  }

  Device& device_;
  DeviceArray<RowMeta> metas_;
  DeviceArray<uint64_t> served_;
  DeviceArray<uint64_t> stamps_;
};

}  // namespace embstore::gpu
