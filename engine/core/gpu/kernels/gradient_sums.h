// The sum of each distinct id's gradients, added in the order of the batch: the first is copied, and the others are
// added one by one, as the CPU's GradientBatch does. `Unit` as in rows.h: four floats, or one where the dimension is no
// multiple of four.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

template <class Unit>
struct SumGradientsArguments {
  Global<const Unit> gradients;           // of row_units each, by position in the batch
  Global<const uint32_t> positions;       // of the batch, by distinct id and then in order
  Global<const uint32_t> begins;          // in `positions`, of each distinct id
  Global<const uint32_t> occurrences;     // of each distinct id
  Global<const uint32_t> distinct_count;  // one
  Global<Unit> sums;                      // of row_units each, by distinct id
  uint32_t row_units;
};

inline float plus(float a, float b) { return a + b; }
inline Float4 plus(const Float4& a, const Float4& b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// gradient(begin) + ... + gradient(end - 1), added in that order. REQUIRES: begin < end.
template <class Unit, class Gradient>
inline Unit sum_in_order(uint64_t begin, uint64_t end, const Gradient& gradient) {
  constexpr uint32_t kLoadedAhead = 4;  // additions wait for each other, loads need not
  Unit sum = gradient(begin);
  uint64_t i = begin + 1;
  for (; i + kLoadedAhead <= end; i += kLoadedAhead) {
    Unit loaded[kLoadedAhead];
    EMBSTORE_UNROLL
    for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) loaded[ahead] = gradient(i + ahead);
    EMBSTORE_UNROLL
    for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) sum = plus(sum, loaded[ahead]);
  }
  for (; i < end; ++i) sum = plus(sum, gradient(i));
  return sum;
}

// The host launches one thread a unit of the most sums there can be.
template <class Unit>
inline void sum_unit(const SumGradientsArguments<Unit>& arguments) {
  const uint64_t number = uint64_t{block_index()} * block_threads() + thread_index();
  const uint64_t distinct = number / arguments.row_units;
  const uint64_t column = number % arguments.row_units;
  if (distinct >= arguments.distinct_count[0]) return;
  const uint64_t begin = arguments.begins[distinct];
  arguments.sums[number] =
      sum_in_order<Unit>(begin, begin + arguments.occurrences[distinct], [&](uint64_t i) -> Unit {
        return arguments.gradients[uint64_t{arguments.positions[i]} * arguments.row_units + column];
      });
}

EMBSTORE_KERNEL(sum_gradients, SumGradientsArguments<Float4>) { sum_unit(arguments); }
EMBSTORE_KERNEL(sum_gradients_by_float, SumGradientsArguments<float>) { sum_unit(arguments); }

}  // namespace embstore::gpu
