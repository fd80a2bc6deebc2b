// The gradients of a batch, put in order by distinct id, and summed for some of these in the order of the batch: the CPU's bits. Its memory is used again
// by the next batch, so each batch in flight needs one of its own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "gpu/buffers.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/kernels/sort.h"
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

  // Puts the positions of the batch's `ids` ids in order, as positions() says: what device_update.h needs.
  void sort(const UniqueBatch& unique, uint32_t ids, Stream stream) {
    if (ids == 0) return;
    const Sorted sorted = sort(unique.inverse().first(ids).as_const(), stream);
    device_.launch(mark_segments, Grid::of(ids, kMostBlockThreads), {sorted.numbers, begins_.global()},
                   stream);
    positions_ = sorted.positions;
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
  // `gradients`: a row of `dim` floats each of the `ids` ids of the unique batch. REQUIRES: sort() of it.
  void sum(const UniqueBatch& unique, uint32_t ids, DeviceAddress gradients, const Chosen& chosen,
           const Sums& to, Stream stream) {
    if (ids == 0) return;
    // PyTorch's tensors may begin at any float.
    if (dim_ % 4 == 0 && gradients.value % sizeof(Float4) == 0) {
      launch_sums<Float4>(sum_gradients, 4, unique, ids, gradients, chosen, to, stream);
    } else {
      launch_sums<float>(sum_gradients_by_float, 1, unique, ids, gradients, chosen, to, stream);
    }
    device_.launch(describe_chosen, Grid::of(ids, kMostBlockThreads),
                   {positions_, begins_.constant(), unique.occurrences().constant(), chosen.numbers,
                    chosen.count, to.occurrences, to.last_positions},
                   stream);
  }

  // Of the batch that was sorted last, by distinct id and then in order; and where those of each distinct id begin.
  Global<const uint32_t> positions() const { return positions_; }
  const DeviceArray<uint32_t>& begins() const { return begins_; }

 private:
  struct Sorted {
    Global<const uint32_t> numbers;
    Global<const uint32_t> positions;
  };

  Grid sort_grid(uint64_t ids) const { return Grid::of((ids + kSortItems - 1) / kSortItems, sort_threads_); }

  Sorted sort(Global<const uint32_t> numbers, Stream stream) {
    const Grid grid = sort_grid(numbers.count);
    const Global<uint32_t> digits = block_digits_.first(uint64_t{kDigits} * grid.blocks);
    // There are no more distinct ids than ids.
    const auto bits = static_cast<uint32_t>(std::bit_width(numbers.count - 1));
    Sorted sorted{numbers, {}};
    auto* to_numbers = &first_numbers_;
    auto* to_positions = &first_positions_;
    auto* next_numbers = &second_numbers_;
    auto* next_positions = &second_positions_;
    for (uint32_t shift = 0; shift == 0 || shift < bits; shift += kDigitBits) {
      const SortArguments pass{sorted.numbers, sorted.positions,     shift,
                               digits,         to_numbers->global(), to_positions->global()};
      device_.launch(count_digits, grid, pass, stream);
      device_.launch(scan_counts, {1, kMostBlockThreads}, {digits, total_.global()}, stream);
      device_.launch(move_by_digit, grid, pass, stream);
      sorted = {to_numbers->first(numbers.count).as_const(), to_positions->first(numbers.count).as_const()};
      std::swap(to_numbers, next_numbers);
      std::swap(to_positions, next_positions);
    }
    return sorted;
  }

  template <class Unit>
  void launch_sums(const Kernel<SumGradientsArguments<Unit>>& kernel, uint32_t unit_floats,
                   const UniqueBatch& unique, uint32_t ids, DeviceAddress gradients, const Chosen& chosen,
                   const Sums& to, Stream stream) {
    constexpr uint32_t kMostBlocks = 1024;
    const uint64_t row_units = dim_ / unit_floats;
    Grid grid = Grid::of(ids * row_units, kMostBlockThreads);
    grid.blocks = std::min(grid.blocks, kMostBlocks);
    device_.launch(kernel, grid,
                   {{gradients, ids * row_units},
                    positions_,
                    begins_.constant(),
                    unique.occurrences().constant(),
                    chosen.numbers,
                    chosen.count,
                    {to.sums.address, to.sums.count / unit_floats},
                    static_cast<uint32_t>(row_units)},
                   stream);
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
