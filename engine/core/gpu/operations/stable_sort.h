// Sorts the positions of a batch by a number that each has: see kernels/sort.h. The next batch uses the
// memory again, so each batch in flight needs a StableSort of its own.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffers.h"
#include "gpu/kernels/sort.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class StableSort {
 public:
  StableSort(Device& device, uint32_t most, uint32_t sort_threads = kSortThreads);

  // A batch to sort into `to`: a number for each item, none above `max_number`. `positions` stand for the
  // items in the result; empty: the items' indices from 0 on.
  struct Input {
    StableSort* to;
    Global<const uint32_t> numbers;
    uint32_t max_number;
    Global<const uint32_t> positions = {};
  };
  // Several batches share a kernel launch in each pass.
  static void sort(std::span<const Input> batches, Stream stream);

  // Memory for the numbers of `items` items, if they are nowhere else.
  Global<uint32_t> input(uint32_t items) const { return second_numbers_.first(items); }
  // The result, for the batch that was sorted last.
  Global<const uint32_t> numbers() const { return numbers_; }
  Global<const uint32_t> positions() const { return positions_; }

 private:
  Grid grid(uint64_t items) const { return Grid::of((items + kSortItems - 1) / kSortItems, sort_threads_); }

  struct Passes;  // the passes over one batch

  Device& device_;
  const uint32_t sort_threads_;
  DeviceArray<uint32_t> block_digits_;
  DeviceArray<uint32_t> total_;
  DeviceArray<uint32_t> first_numbers_;
  DeviceArray<uint32_t> first_positions_;
  DeviceArray<uint32_t> second_numbers_;
  DeviceArray<uint32_t> second_positions_;
  Global<const uint32_t> numbers_{};
  Global<const uint32_t> positions_{};
};

}  // namespace embstore::gpu
