// The gradients of a batch, put in order by distinct id, and summed for some of these in the order of the batch: the CPU's bits. Its memory is used again
// by the next batch, so each batch in flight needs one of its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/kernels/sort.h"
#include "gpu/operations/launches.h"
#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

class GradientSums {
 public:
  GradientSums(Device& device, uint32_t most_ids, uint32_t dim, uint32_t sort_threads = kSortThreads)
      : device_(device),
        dim_(dim),
        sort_threads_(sort_threads),
        block_digits_(device, uint64_t{kDigits} * sort_grid(most_ids).blocks),
        total_(device, 1),
        first_numbers_(device, most_ids),
        first_positions_(device, most_ids),
        second_numbers_(device, most_ids),
        second_positions_(device, most_ids),
        begins_(device, most_ids) {}

  // A batch that is put in order, into `to`. REQUIRES: `unique` has so many ids.
  struct Input {
    GradientSums* to;
    const UniqueBatch* unique;
    uint32_t ids;
  };
  // Puts the positions of batches' ids in order, as positions() says: what device_update.h needs. Of several batches, each kernel is
  // launched once a pass.
  static void sort(std::span<const Input> batches, Stream stream) {
    std::vector<Sort> sorts;
    for (const Input& of : batches) {
      if (of.ids != 0) sorts.emplace_back(of);
    }
    if (sorts.empty()) return;
    Device& device = sorts.front().of.to->device_;
    Launches launches;
    for (bool is_sorted = false; !is_sorted;) {
      for (const Sort& one : sorts) one.add(count_digits, launches);
      launches.put(device, stream);
      for (const Sort& one : sorts) {
        if (one.has_pass()) {
          launches.add(scan_counts, {1, kMostBlockThreads}, {one.digits(), one.of.to->total_.global()});
        }
      }
      launches.put(device, stream);
      for (const Sort& one : sorts) one.add(move_by_digit, launches);
      launches.put(device, stream);
      is_sorted = true;
      for (Sort& one : sorts) {
        one.end_pass();
        is_sorted = is_sorted && !one.has_pass();
      }
    }
    for (const Sort& one : sorts) {
      launches.add(mark_segments, Grid::of(one.of.ids, kMostBlockThreads),
                   {one.numbers, one.of.to->begins_.global()});
      one.of.to->positions_ = one.positions;
    }
    launches.put(device, stream);
  }
  void sort(const UniqueBatch& unique, uint32_t ids, Stream stream) {
    const Input only{this, &unique, ids};
    sort({&only, 1}, stream);
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
          {one.of.to->positions_, one.of.to->begins_.constant(), one.of.unique->occurrences().constant(),
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
  Global<const uint32_t> positions() const { return positions_; }
  const DeviceArray<uint32_t>& begins() const { return begins_; }

 private:
  Grid sort_grid(uint64_t ids) const { return Grid::of((ids + kSortItems - 1) / kSortItems, sort_threads_); }

  // The passes of one batch.
  struct Sort {
    explicit Sort(const Input& batch)
        : of(batch),
          grid(batch.to->sort_grid(batch.ids)),
          // There are no more distinct ids than ids.
          bits(static_cast<uint32_t>(std::bit_width(batch.ids - 1))),
          numbers(batch.unique->inverse().first(batch.ids).as_const()) {}

    bool has_pass() const { return pass == 0 || pass * kDigitBits < bits; }
    Global<uint32_t> digits() const { return of.to->block_digits_.first(uint64_t{kDigits} * grid.blocks); }
    void add(const Kernel<SortArguments>& kernel, Launches& launches) const {
      if (!has_pass()) return;
      launches.add(kernel, grid,
                   {numbers, positions, pass * kDigitBits, grid.blocks, digits(), to_numbers().global(),
                    to_positions().global()});
    }
    void end_pass() {
      if (!has_pass()) return;
      numbers = to_numbers().first(of.ids).as_const();
      positions = to_positions().first(of.ids).as_const();
      ++pass;
    }
    const DeviceArray<uint32_t>& to_numbers() const {
      return pass % 2 == 0 ? of.to->first_numbers_ : of.to->second_numbers_;
    }
    const DeviceArray<uint32_t>& to_positions() const {
      return pass % 2 == 0 ? of.to->first_positions_ : of.to->second_positions_;
    }

    Input of;
    Grid grid;
    uint32_t bits;
    uint32_t pass = 0;
    Global<const uint32_t> numbers;
    Global<const uint32_t> positions{};
  };

  template <class Unit>
  void add_sums(Launches& launches, const Kernel<SumGradientsArguments<Unit>>& kernel, uint32_t unit_floats,
                const Summed& one) const {
    constexpr uint32_t kMostBlocks = 1024;
    const uint64_t row_units = dim_ / unit_floats;
    Grid grid = Grid::of(one.of.ids * row_units, kMostBlockThreads);
    grid.blocks = std::min(grid.blocks, kMostBlocks);
    launches.add(kernel, grid,
                 {{one.gradients, one.of.ids * row_units},
                  positions_,
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
  const uint32_t sort_threads_;
  DeviceArray<uint32_t> block_digits_;
  DeviceArray<uint32_t> total_;
  DeviceArray<uint32_t> first_numbers_;
  DeviceArray<uint32_t> first_positions_;
  DeviceArray<uint32_t> second_numbers_;
  DeviceArray<uint32_t> second_positions_;
  DeviceArray<uint32_t> begins_;
  Global<const uint32_t> positions_{};
};

}  // namespace embstore::gpu
