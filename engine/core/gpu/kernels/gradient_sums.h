// The sum of each distinct id's gradients, added in the order of the batch: the first is copied, and the others are
// added one by one, as the CPU's GradientBatch does. `Unit` as in rows.h: four floats, or one where the dimension is no
// multiple of four.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

template <class Unit>
struct SumGradientsArguments {
  Global<const Unit> gradients;        // of row_units each, by position in the batch
  Global<const uint32_t> positions;    // of the batch, by distinct id and then in order
  Global<const uint32_t> begins;       // in `positions`, of each distinct id
  Global<const uint32_t> occurrences;  // of each distinct id
  Global<const uint32_t> chosen;       // distinct ids whose gradients are summed
  Global<const uint32_t> count;        // one: how many of them there are
  Global<Unit> sums;                   // of row_units each, of those that are chosen: in pinned memory, say
  uint32_t row_units;
  uint32_t blocks;  // of the run
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

// A thread sums units far apart, so that a grid need not be as large as the largest batch: few ids are chosen of most.
template <class Unit>
inline void sum_units(const SumGradientsArguments<Unit>& arguments) {
  const uint64_t end = uint64_t{arguments.count[0]} * arguments.row_units;
  const uint64_t step = uint64_t{arguments.blocks} * block_threads();
  for (uint64_t number = uint64_t{block_index()} * block_threads() + thread_index(); number < end;
       number += step) {
    const uint32_t distinct = arguments.chosen[number / arguments.row_units];
    const uint64_t column = number % arguments.row_units;
    const uint64_t begin = arguments.begins[distinct];
    arguments.sums[number] =
        sum_in_order<Unit>(begin, begin + arguments.occurrences[distinct], [&](uint64_t i) -> Unit {
          return arguments.gradients[uint64_t{arguments.positions[i]} * arguments.row_units + column];
        });
  }
}

EMBSTORE_KERNEL(sum_gradients, SumGradientsArguments<Float4>) { sum_units(arguments); }
EMBSTORE_KERNEL(sum_gradients_by_float, SumGradientsArguments<float>) { sum_units(arguments); }

struct DescribeChosenArguments {
  Global<const uint32_t> positions;  // these and the next are as above
  Global<const uint32_t> begins;
  Global<const uint32_t> occurrences;
  Global<const uint32_t> chosen;
  Global<const uint32_t> count;
  Global<uint32_t> chosen_occurrences;
  Global<uint32_t> last_positions;  // in the batch
};

EMBSTORE_KERNEL(describe_chosen, DescribeChosenArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0]) return;
  const uint32_t distinct = arguments.chosen[i];
  const uint32_t occurrences = arguments.occurrences[distinct];
  arguments.chosen_occurrences[i] = occurrences;
  arguments.last_positions[i] = arguments.positions[uint64_t{arguments.begins[distinct]} + occurrences - 1];
}

}  // namespace embstore::gpu
