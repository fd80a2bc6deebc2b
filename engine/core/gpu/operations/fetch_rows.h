// Copies a few rows from pinned memory to their places in a batch; the host doesn't know how many there are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/rows.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

struct FetchedRows {
  Global<const float> rows;  // `floats` each
  // Each row's address if it lies elsewhere, else no address. Multiples of 16 if `floats` is a multiple of 4.
  Global<const DeviceAddress> elsewhere;
};

// Copies row i of `from` to row places[i] of `to`, or to row order[places[i]] if there is an order. `count`
// is one number in device memory.
inline void add_fetch(const FetchedRows& from, Global<const uint32_t> places, Global<const uint32_t> order,
                      Global<const uint32_t> count, Global<float> to, uint32_t floats, Launches& launches) {
  constexpr uint32_t kMaxBlocks = 512;  // more blocks than run at once
  constexpr uint32_t kVector = sizeof(Words4) / sizeof(float);
  const auto add = [&]<class Unit>(const Kernel<FetchRowsArguments<Unit>>& kernel, uint32_t unit_floats) {
    const uint32_t row_units = floats / unit_floats;
    Grid grid = Grid::of(places.count * row_units, kMaxBlockThreads);
    grid.blocks = std::min(grid.blocks, kMaxBlocks);
    launches.add(kernel, grid,
                 {{from.rows.address, from.rows.count / unit_floats},
                  row_units,
                  from.elsewhere,
                  places,
                  order,
                  count,
                  {to.address, to.count / unit_floats},
                  grid.blocks});
  };
  const bool by_vector = floats % kVector == 0 && from.rows.address.value % sizeof(Words4) == 0 &&
                         to.address.value % sizeof(Words4) == 0;
  if (by_vector) {
    add(gpu::fetch_rows, kVector);
  } else {
    add(gpu::fetch_floats, 1);
  }
}

}  // namespace embstore::gpu
