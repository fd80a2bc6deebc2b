#include "gpu/operations/gradient_sums.h"

#include <algorithm>
#include <vector>

#include "gpu/kernels/places.h"

namespace embstore::gpu {
namespace {

constexpr uint32_t kMaxBlocks = 1024;  // more blocks than run at once

uint64_t max_long_runs(uint64_t ids) { return ids / kLongRun + 1; }

}  // namespace

GradientSums::GradientSums(Device& device, uint32_t max_ids, uint32_t dim, uint32_t sort_threads)
    : device_(device),
      dim_(dim),
      sort_(device, max_ids, sort_threads),
      begins_(device, max_ids),
      ends_(device, max_ids),
      long_runs_(device, max_long_runs(max_ids)),
      long_count_(device, 1),
      long_sums_(device, max_long_runs(max_ids) * units_of(dim)) {}

void GradientSums::sort(std::span<const Input> batches, Stream stream) {
  std::vector<StableSort::Input> sorts;
  for (const Input& batch : batches) {
    if (batch.ids == 0) continue;
    // There are no more distinct ids than ids.
    sorts.push_back(
        {&batch.to->sort_, batch.unique->inverse().first(batch.ids).as_const(), batch.ids - 1, batch.order});
  }
  if (sorts.empty()) return;
  StableSort::sort(sorts, stream);
  Launches launches;
  for (const Input& batch : batches) {
    if (batch.ids == 0) continue;
    batch.to->device_.fill(batch.to->long_count_.address(), 0, sizeof(uint32_t), stream);
    launches.add(find_runs, Grid::of(batch.ids, kMaxBlockThreads),
                 {batch.to->sort_.numbers(), batch.unique->count().constant(), batch.to->begins_.global(),
                  batch.to->ends_.global(), batch.to->long_runs_.global(), batch.to->long_count_.global()});
  }
  launches.put(batches.front().to->device_, stream);
}

void GradientSums::find_bounds(std::span<const Bounds> batches, Stream stream) {
  if (batches.empty()) return;
  Launches launches;
  for (const Bounds& one : batches) {
    launches.add(gpu::find_bounds, Grid::of(one.bounds.count, kMaxBlockThreads),
                 {one.batch->to->begins_.constant(), one.batch->unique->count().constant(), one.id_bounds,
                  one.bounds, one.bounds_on_host});
  }
  launches.put(batches.front().batch->to->device_, stream);
}

void GradientSums::sum(std::span<const Summed> batches, Stream stream) {
  if (batches.empty()) return;
  Device& device = batches.front().batch.to->device_;
  Launches launches;
  for (const Summed& one : batches) one.batch.to->add_long_sums(one.batch.ids, one.gradients, launches);
  launches.put(device, stream);
  for (const Summed& one : batches) {
    if (one.batch.ids == 0) continue;
    const GradientSums& to = *one.batch.to;
    Grid grid = Grid::of(uint64_t{one.batch.ids} * units_of(to.dim_), kMaxBlockThreads);
    grid.blocks = std::min(grid.blocks, kMaxBlocks);
    launches.add(
        sum_gradients, grid,
        {to.gradients(one.gradients), one.chosen.numbers, one.chosen.count, one.to.sums, grid.blocks});
    launches.add(describe_chosen, Grid::of(one.batch.ids, kMaxBlockThreads),
                 {to.positions(), to.begins_.constant(), to.ends_.constant(), one.chosen.numbers,
                  one.chosen.count, one.to.occurrences, one.to.last_positions});
  }
  launches.put(device, stream);
}

void GradientSums::add_long_sums(uint32_t ids, const GradientRows& rows, Launches& launches) const {
  if (ids == 0) return;
  const uint64_t max_tiles = max_long_runs(ids) * (dim_ / kTileFloats + 1);
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(max_tiles, kMaxBlocks));
  launches.add(sum_long_runs, {blocks, kMaxBlockThreads},
               {gradients(rows), long_runs_.constant(), long_count_.constant(), blocks});
}

BatchGradients GradientSums::gradients(const GradientRows& rows) const {
  return {.floats = {rows.floats, rows.count * dim_},
          .dim = dim_,
          // PyTorch's tensors may begin at any float.
          .is_float4_aligned = dim_ % 4 == 0 && rows.floats.value % sizeof(Float4) == 0,
          .positions = positions(),
          .begins = begins_.constant(),
          .ends = ends_.constant(),
          .long_sums = long_sums_.global(),
          .bags = rows.bags};
}

}  // namespace embstore::gpu
