#include "gpu/operations/gradient_sums.h"

#include <algorithm>
#include <vector>

#include "gpu/kernels/places.h"

namespace embstore::gpu {
namespace {

constexpr uint32_t kMostBlocks = 1024;  // more blocks than run at once

uint64_t most_long_runs(uint64_t ids) { return ids / kLongRun + 1; }

}  // namespace

GradientSums::GradientSums(Device& device, uint32_t most_ids, uint32_t dim, uint32_t sort_threads)
    : device_(device),
      dim_(dim),
      sort_(device, most_ids, sort_threads),
      begins_(device, most_ids),
      ends_(device, most_ids),
      long_runs_(device, most_long_runs(most_ids)),
      long_count_(device, 1),
      long_sums_(device, most_long_runs(most_ids) * units_of(dim)) {}

void GradientSums::sort(std::span<const Input> batches, Stream stream) {
  std::vector<StableSort::Input> sorts;
  for (const Input& of : batches) {
    if (of.ids == 0) continue;
    // There are no more distinct ids than ids.
    sorts.push_back({&of.to->sort_, of.unique->inverse().first(of.ids).as_const(), of.ids - 1, of.order});
  }
  if (sorts.empty()) return;
  StableSort::sort(sorts, stream);
  Launches launches;
  for (const Input& of : batches) {
    if (of.ids == 0) continue;
    of.to->device_.fill(of.to->long_count_.address(), 0, sizeof(uint32_t), stream);
    launches.add(find_runs, Grid::of(of.ids, kMostBlockThreads),
                 {of.to->sort_.numbers(), of.unique->count().constant(), of.to->begins_.global(),
                  of.to->ends_.global(), of.to->long_runs_.global(), of.to->long_count_.global()});
  }
  launches.put(batches.front().to->device_, stream);
}

void GradientSums::find_bounds(std::span<const Bounds> batches, Stream stream) {
  if (batches.empty()) return;
  Launches launches;
  for (const Bounds& one : batches) {
    launches.add(gpu::find_bounds, Grid::of(one.bounds.count, kMostBlockThreads),
                 {one.of->to->begins_.constant(), one.of->unique->count().constant(), one.id_bounds,
                  one.bounds, one.bounds_on_host});
  }
  launches.put(batches.front().of->to->device_, stream);
}

void GradientSums::sum(std::span<const Summed> batches, Stream stream) {
  if (batches.empty()) return;
  Device& device = batches.front().of.to->device_;
  Launches launches;
  for (const Summed& one : batches) one.of.to->add_long_sums(one.of.ids, one.gradients, launches);
  launches.put(device, stream);
  for (const Summed& one : batches) {
    if (one.of.ids == 0) continue;
    const GradientSums& to = *one.of.to;
    Grid grid = Grid::of(uint64_t{one.of.ids} * units_of(to.dim_), kMostBlockThreads);
    grid.blocks = std::min(grid.blocks, kMostBlocks);
    launches.add(
        sum_gradients, grid,
        {to.gradients(one.gradients), one.chosen.numbers, one.chosen.count, one.to.sums, grid.blocks});
    launches.add(describe_chosen, Grid::of(one.of.ids, kMostBlockThreads),
                 {to.positions(), to.begins_.constant(), to.ends_.constant(), one.chosen.numbers,
                  one.chosen.count, one.to.occurrences, one.to.last_positions});
  }
  launches.put(device, stream);
}

void GradientSums::add_long_sums(uint32_t ids, DeviceAddress gradients_of_batch, Launches& launches) const {
  if (ids == 0) return;
  const uint64_t most_tiles = most_long_runs(ids) * (dim_ / kTileFloats + 1);
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(most_tiles, kMostBlocks));
  launches.add(sum_long_runs, {blocks, kMostBlockThreads},
               {gradients(gradients_of_batch), long_runs_.constant(), long_count_.constant(), blocks});
}

BatchGradients GradientSums::gradients(DeviceAddress floats) const {
  return {.floats = {floats, positions().count * dim_},
          .dim = dim_,
          // PyTorch's tensors may begin at any float.
          .by_four = dim_ % 4 == 0 && floats.value % sizeof(Float4) == 0,
          .positions = positions(),
          .begins = begins_.constant(),
          .ends = ends_.constant(),
          .long_sums = long_sums_.global()};
}

}  // namespace embstore::gpu
