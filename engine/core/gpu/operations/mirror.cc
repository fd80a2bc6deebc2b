#include "gpu/operations/mirror.h"

#include "gpu/kernels/moves.h"

namespace embstore::gpu {

Mirror::Mirror(Device& device, uint32_t slots, uint64_t buckets, Stream stream)
    : device_(device), buckets_(device, buckets), keys_(device, slots), refused_(device, 1) {
  refused_.fill(0, stream);
  device_.launch(clear_mirror, Grid::of(buckets, kMaxBlockThreads), {arrays()}, stream);
  device_.synchronise(stream);  // the caller may fail and free the mirror, so the kernel must have ended
}

void Mirror::insert(Global<const int64_t> keys, Global<const uint32_t> slots, Global<const uint32_t> count,
                    Stream stream) {
  device_.launch(gpu::insert, Grid::of(keys.count, kMaxBlockThreads),
                 {arrays(), keys, slots, count, refused_.global()}, stream);
}

void Mirror::erase(Global<const int64_t> keys, Global<uint32_t> slots, Global<const uint32_t> count,
                   Stream stream) {
  const Grid grid = Grid::of(keys.count, kMaxBlockThreads);
  device_.launch(locate, grid, {arrays(), keys, slots, count}, stream);
  device_.launch(gpu::erase, grid, {arrays(), keys, slots.as_const(), count}, stream);
}

void Mirror::erase_slots(Global<const uint32_t> slots, Global<const uint32_t> count, Stream stream) {
  device_.launch(gpu::erase, Grid::of(slots.count, kMaxBlockThreads), {arrays(), {}, slots, count}, stream);
}

FoundBatch::FoundBatch(Device& device, uint32_t max_ids, uint32_t block_threads)
    : device_(device),
      block_threads_(block_threads),
      slots_(device, max_ids),
      missing_ids_(device, max_ids),
      missing_places_(device, max_ids),
      block_misses_(device, Grid::of(max_ids, block_threads).blocks),
      miss_count_(device, 1) {}

void FoundBatch::find(std::span<const Input> batches, Stream stream) {
  if (batches.empty()) return;
  Device& device = batches.front().to->device_;
  Launches launches;
  for (const Input& batch : batches) {
    for (uint32_t table = 0; table < batch.mirrors.size(); ++table) {
      const Places places = batch.places(table);
      const Grid grid = Grid::over(batch.ids.count, batch.to->block_threads_, places.tables);
      launches.add(
          gpu::find, grid,
          {batch.mirrors[table]->arrays(), batch.ids, places, grid.blocks, batch.to->slots_.global()});
    }
  }
  launches.put(device, stream);
  for (const Input& batch : batches)
    launches.add(count_misses, batch.to->grid(batch), batch.to->misses(batch));
  launches.put(device, stream);
  for (const Input& batch : batches) {
    launches.add(scan_counts, {1, batch.to->block_threads_},
                 {batch.to->block_misses(batch), batch.to->miss_count_.global(),
                  batch.mirrors.size() == 1 ? batch.miss_count_on_host() : Global<uint32_t>{}});
  }
  launches.put(device, stream);
  for (const Input& batch : batches)
    launches.add(collect_misses, batch.to->grid(batch), batch.to->misses(batch));
  launches.put(device, stream);
  for (const Input& batch : batches) {
    if (batch.mirrors.size() == 1) continue;
    launches.add(find_bounds, Grid::of(batch.bounds.count, kMaxBlockThreads),
                 {batch.to->missing_places_.constant(), batch.to->miss_count_.constant(), batch.bounds,
                  batch.miss_bounds_on_host});
  }
  launches.put(device, stream);
}

void FoundBatch::find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count,
                      Stream stream) {
  const Input only{.to = this, .mirrors = {&mirror}, .ids = ids, .id_count = id_count};
  find({&only, 1}, stream);
}

MissesArguments FoundBatch::misses(const Input& batch) const {
  return {batch.ids,
          batch.id_count,
          slots_.constant(),
          block_misses(batch),
          batch.order,
          batch.missing_ids.count == 0 ? missing_ids_.global() : batch.missing_ids,
          missing_places_.global(),
          batch.positions_on_host};
}

}  // namespace embstore::gpu
