// The gradients of a batch, put in order by distinct id, and summed in the order of the batch: the CPU's bits. Its memory is used again
// by the next batch, so each batch in flight needs one of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/kernels/places.h"
#include "gpu/operations/launches.h"
#include "gpu/operations/stable_sort.h"
#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

class GradientSums {
 public:
  GradientSums(Device& device, uint32_t most_ids, uint32_t dim, uint32_t sort_threads = kSortThreads)
      : device_(device),
        dim_(dim),
        sort_(device, most_ids, sort_threads),
        begins_(device, most_ids),
        ends_(device, most_ids),
        long_runs_(device, most_long_runs(most_ids)),
        long_count_(device, 1),
        long_sums_(device, most_long_runs(most_ids) * units_of(dim)) {}

  // A batch that is put in order, into `to`. REQUIRES: `unique` has so many ids.
  struct Input {
    GradientSums* to;
    const UniqueBatch* unique;
    uint32_t ids;
    Global<const uint32_t> order = {};  // where given: the position of each id in the caller's batch
  };
  // Puts the positions of batches' ids in order, as positions() says: what device_update.h needs. Of several batches, each kernel is
  // launched once a pass.
  static void sort(std::span<const Input> batches, Stream stream) {
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
  void sort(const UniqueBatch& unique, uint32_t ids, Stream stream) {
    const Input only{this, &unique, ids};
    sort({&only, 1}, stream);
  }
  // Of batches whose ids are in the order of tables: where the distinct ids of each begin, and where the last ones end. `id_bounds`:
  // the same of ids. REQUIRES: sort() of the batch.
  struct Bounds {
    const Input* of;
    Global<const uint32_t> id_bounds;
    Global<uint32_t> bounds;
    Global<uint32_t> bounds_on_host;  // likewise, in pinned memory
  };
  static void find_bounds(std::span<const Bounds> batches, Stream stream) {
    if (batches.empty()) return;
    Launches launches;
    for (const Bounds& one : batches) {
      launches.add(gpu::find_bounds, Grid::of(one.bounds.count, kMostBlockThreads),
                   {one.of->to->begins_.constant(), one.of->unique->count().constant(), one.id_bounds,
                    one.bounds, one.bounds_on_host});
    }
    launches.put(batches.front().of->to->device_, stream);
  }
  // Which distinct ids: `count`, one number that the device reaches, says how many.
  struct Chosen {
    Global<const uint32_t> numbers;
    Global<const uint32_t> count;
  };
  // What is told of each that was chosen: its sum, of `dim` floats, how often it occurs and where it does last. In device
  // memory, or pinned.
  struct Sums {
    Global<float> sums;
    Global<uint32_t> occurrences;
    Global<uint32_t> last_positions;
  };
  // `gradients`: a row of `dim` floats each of the ids. REQUIRES: sort() of the batch.
  struct Summed {
    Input of;
    DeviceAddress gradients;
    Chosen chosen;
    Sums to;
  };
  // Sums long runs of all distinct ids, and the gradients of those that are chosen.
  static void sum(std::span<const Summed> batches, Stream stream) {
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
  void sum(const UniqueBatch& unique, uint32_t ids, DeviceAddress gradients, const Chosen& chosen,
           const Sums& to, Stream stream) {
    const Summed only{{this, &unique, ids}, gradients, chosen, to};
    sum({&only, 1}, stream);
  }

  // The part of sum() that others need who sum gradients themselves: see summed_gradient().
  void add_long_sums(uint32_t ids, DeviceAddress gradients_of_batch, Launches& launches) const {
    if (ids == 0) return;
    const uint64_t most_tiles = most_long_runs(ids) * (dim_ / kTileFloats + 1);
    const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(most_tiles, kMostBlocks));
    launches.add(sum_long_runs, {blocks, kMostBlockThreads},
                 {gradients(gradients_of_batch), long_runs_.constant(), long_count_.constant(), blocks});
  }
  // As kernels take them; `floats`: those of sum().
  BatchGradients gradients(DeviceAddress floats) const {
    return {.floats = {floats, positions().count * dim_},
            .dim = dim_,
            // PyTorch's tensors may begin at any float.
            .by_four = dim_ % 4 == 0 && floats.value % sizeof(Float4) == 0,
            .positions = positions(),
            .begins = begins_.constant(),
            .ends = ends_.constant(),
            .long_sums = long_sums_.global()};
  }
  // Of the batch that was sorted last, by distinct id and then in order; and where those of each distinct id begin.
  Global<const uint32_t> positions() const { return sort_.positions(); }
  const DeviceArray<uint32_t>& begins() const { return begins_; }
  const DeviceArray<uint32_t>& ends() const { return ends_; }  // and end

 private:
  static constexpr uint32_t kMostBlocks = 1024;  // more than run at once

  static uint64_t most_long_runs(uint64_t ids) { return ids / kLongRun + 1; }

  Device& device_;
  const uint32_t dim_;
  StableSort sort_;
  DeviceArray<uint32_t> begins_;
  DeviceArray<uint32_t> ends_;
  DeviceArray<uint32_t> long_runs_;
  DeviceArray<uint32_t> long_count_;
  DeviceArray<Float4> long_sums_;
};

}  // namespace embstore::gpu
