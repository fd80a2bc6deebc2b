// Looks for gradients that are NaN or infinite: a single one spoils its row for good. `Unit` is four floats,
// or one, as in rows.h.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

inline constexpr uint32_t kAllFinite = 0xffffffff;

template <class Unit>
struct FindNotFiniteArguments {
  Global<const Unit> gradients;  // in rows of row_units
  uint32_t row_units;
  uint32_t blocks;             // the run's number of blocks
  uint32_t ids;                // the number of ids in the batch
  Global<const int64_t> bags;  // for each position: its row; empty: row i is that of position i
  Global<const int64_t> kept;  // for each position: 0 leaves it out; empty: all are kept
  // One element, kAllFinite before: becomes the first position with such a gradient. May be in pinned memory.
  Global<uint32_t> first;
};

// The difference of two infinities is NaN, which equals nothing.
inline bool is_finite(float value) { return value - value == 0.0f; }
inline bool is_finite(const Float4& value) {
  return is_finite(value.x) && is_finite(value.y) && is_finite(value.z) && is_finite(value.w);
}

template <class Unit>
inline void find_not_finite_units(const FindNotFiniteArguments<Unit>& arguments) {
  const uint64_t step = uint64_t{arguments.blocks} * block_threads();
  const uint64_t end = uint64_t{arguments.ids} * arguments.row_units;
  for (uint64_t number = uint64_t{block_index()} * block_threads() + thread_index(); number < end;
       number += step) {
    uint64_t unit = number;
    if (arguments.bags.count != 0) {
      const auto row = static_cast<uint64_t>(arguments.bags[number / arguments.row_units]);
      unit = row * arguments.row_units + number % arguments.row_units;
    }
    if (is_finite(arguments.gradients[unit])) continue;
    const auto position = static_cast<uint32_t>(number / arguments.row_units);
    if (arguments.kept.count == 0 || arguments.kept[position] != 0) {
      atomic_min(arguments.first[0], position);
    }
  }
}

EMBSTORE_KERNEL(find_not_finite, FindNotFiniteArguments<Float4>) { find_not_finite_units(arguments); }
EMBSTORE_KERNEL(find_not_finite_by_float, FindNotFiniteArguments<float>) { find_not_finite_units(arguments); }

}  // namespace embstore::gpu
