// Finds out whether all gradients of a batch are finite.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/finite.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

// Sets `first`, which is kAllFinite before, to the position of the first id that has a NaN or infinite
// gradient. Ids that `kept` leaves out don't count. `gradients` has rows of `dim` floats.
inline void add_find_not_finite(const GradientRows& gradients, uint32_t ids, uint32_t dim,
                                Global<const int64_t> kept, Global<uint32_t> first, Launches& launches) {
  if (ids == 0) return;
  constexpr uint32_t kMaxBlocks = 1024;  // more blocks than run at once
  const auto add = [&]<class Unit>(const Kernel<FindNotFiniteArguments<Unit>>& kernel, uint32_t unit_floats) {
    const uint32_t row_units = dim / unit_floats;
    Grid grid = Grid::of(uint64_t{ids} * row_units, kMaxBlockThreads);
    grid.blocks = std::min(grid.blocks, kMaxBlocks);
    launches.add(kernel, grid,
                 {{gradients.floats, gradients.count * row_units},
                  row_units,
                  grid.blocks,
                  ids,
                  {gradients.bags, gradients.bags ? ids : 0},
                  kept,
                  first});
  };
  // PyTorch's tensors may begin at any float.
  if (dim % 4 == 0 && gradients.floats.value % sizeof(Float4) == 0) {
    add(find_not_finite, 4);
  } else {
    add(find_not_finite_by_float, 1);
  }
}

}  // namespace embstore::gpu
