// The gradients of a batch, put in order by distinct id, and summed for some of these in the order of the batch: the CPU's bits. Its memory is used again
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
      : device_(device), dim_(dim), sort_(device, most_ids, sort_threads), begins_(device, most_ids) {}

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
      launches.add(mark_segments, Grid::of(of.ids, kMostBlockThreads),
                   {of.to->sort_.numbers(), of.to->begins_.global()});
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
  static void sum(std::span<const Summed> batches, Stream stream) {
    if (batches.empty()) return;
    Launches launches;
    for (const Summed& one : batches) {
      if (one.of.ids == 0) continue;
      // PyTorch's tensors may begin at any float.
      if (one.of.to->dim_ % 4 == 0 && one.gradients.value % sizeof(Float4) == 0) {
        one.of.to->add_sums<Float4>(launches, sum_gradients, 4, one);
      } else {
        one.of.to->add_sums<float>(launches, sum_gradients_by_float, 1, one);
      }
      launches.add(
          describe_chosen, Grid::of(one.of.ids, kMostBlockThreads),
          {one.of.to->positions(), one.of.to->begins_.constant(), one.of.unique->occurrences().constant(),
           one.chosen.numbers, one.chosen.count, one.to.occurrences, one.to.last_positions});
    }
    launches.put(batches.front().of.to->device_, stream);
  }
  void sum(const UniqueBatch& unique, uint32_t ids, DeviceAddress gradients, const Chosen& chosen,
           const Sums& to, Stream stream) {
    const Summed only{{this, &unique, ids}, gradients, chosen, to};
    sum({&only, 1}, stream);
  }

  // Of the batch that was sorted last, by distinct id and then in order; and where those of each distinct id begin.
  Global<const uint32_t> positions() const { return sort_.positions(); }
  const DeviceArray<uint32_t>& begins() const { return begins_; }

 private:
  template <class Unit>
  void add_sums(Launches& launches, const Kernel<SumGradientsArguments<Unit>>& kernel, uint32_t unit_floats,
                const Summed& one) const {
    constexpr uint32_t kMostBlocks = 1024;
    const uint64_t row_units = dim_ / unit_floats;
    Grid grid = Grid::of(one.of.ids * row_units, kMostBlockThreads);
    grid.blocks = std::min(grid.blocks, kMostBlocks);
    launches.add(kernel, grid,
                 {{one.gradients, one.of.ids * row_units},
                  positions(),
                  begins_.constant(),
                  one.of.unique->occurrences().constant(),
                  one.chosen.numbers,
                  one.chosen.count,
                  {one.to.sums.address, one.to.sums.count / unit_floats},
                  static_cast<uint32_t>(row_units),
                  grid.blocks});
  }

  Device& device_;
  const uint32_t dim_;
  StableSort sort_;
  DeviceArray<uint32_t> begins_;
};

}  // namespace embstore::gpu
