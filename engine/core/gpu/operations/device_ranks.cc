#include "gpu/operations/device_ranks.h"

namespace embstore::gpu {

DeviceRanks::DeviceRanks(Device& device, uint32_t slots)
    : device_(device), metas_(device, slots), served_(device, slots), stamps_(device, slots) {}

void DeviceRanks::put(const Batch& batch, Stream stream) { launch(put_headers, batch, stream); }

void DeviceRanks::take(const Batch& batch, Stream stream) const { launch(take_headers, batch, stream); }

void DeviceRanks::add_update(Global<const uint32_t> slots, const Places& places, const GradientSums& sums,
                             const CountedUpdate& update, Launches& launches) {
  if (slots.count == 0) return;
  const Grid grid = Grid::over(slots.count, kMaxBlockThreads, places.tables);
  launches.add(count_updates_of_rows, grid,
               {arrays(), slots, places, grid.blocks, sums.positions(), sums.begins().constant(),
                sums.ends().constant(), update});
}

void DeviceRanks::add_hits(Global<const uint32_t> slots, const Places& places, Global<const uint32_t> order,
                           uint64_t first_stamp, Launches& launches) {
  if (slots.count == 0) return;
  const Grid grid =
      Grid::over((slots.count + kHitsAThread - 1) / kHitsAThread, kMaxBlockThreads, places.tables);
  launches.add(count_hits_of_rows, grid, {arrays(), slots, places, grid.blocks, order, first_stamp});
}

void DeviceRanks::launch(const Kernel<CopyHeadersArguments>& kernel, const Batch& batch,
                         Stream stream) const {
  if (batch.slots.count == 0) return;
  device_.launch(kernel, Grid::of(batch.slots.count, kMaxBlockThreads),
                 {arrays(), batch.slots, batch.count, batch.headers}, stream);
}

}  // namespace embstore::gpu
