// Sums the gradients of each distinct id in the order of the batch: the first is copied, and the others are
// added to it one by one, as the CPU's GradientBatch does.
//
// Additions for one id have to wait for each other, and so would the loads if the adding thread made them
// itself. So if an id occurs often, a block sums its gradients: all of its threads load ahead into shared
// memory, and few threads add.
#pragma once

#include "gpu/kernels/language.h"

namespace embstore::gpu {

// An id that occurs more often than this is a long run.
inline constexpr uint32_t kLongRun = 64;

// The gradients of a batch in device memory: for each id, or for each bag of ids that share a gradient, a row
// of floats.
struct GradientRows {
  DeviceAddress floats;
  uint64_t count;  // of rows
  // int64: the number of each id's row; no address: row i is that of the batch's id i.
  DeviceAddress bags = {};
};

// A batch's gradients, in rows of `dim` floats, and which of them belong to each distinct id.
struct BatchGradients {
  Global<const float> floats;
  uint32_t dim;
  uint32_t is_float4_aligned;        // 1: four floats can be read at once
  Global<const uint32_t> positions;  // the batch's positions by distinct id, in the batch's order for each
  Global<const uint32_t> begins;     // each distinct id's begin in `positions`
  Global<const uint32_t> ends;       // each distinct id's end in `positions`
  Global<Float4> long_sums;          // the sums of long runs, at long_sum_at()
  DeviceAddress bags;                // as in GradientRows
};

// Returns the number of units of four floats in a row of `dim`.
inline uint32_t units_of(uint32_t dim) { return (dim + 3) / 4; }
// No two long runs have the same `begin / kLongRun`.
inline uint64_t long_sum_at(const BatchGradients& gradients, uint64_t begin, uint32_t unit) {
  return begin / kLongRun * units_of(gradients.dim) + unit;
}

// Calls f(lane) for the first `lanes` of a unit's four floats: lane(unit) is the float.
template <class F>
inline void for_each_lane(uint32_t lanes, const F& f) {
  f([](auto& unit) -> auto& { return unit.x; });
  if (lanes > 1) f([](auto& unit) -> auto& { return unit.y; });
  if (lanes > 2) f([](auto& unit) -> auto& { return unit.z; });
  if (lanes > 3) f([](auto& unit) -> auto& { return unit.w; });
}

// Returns the number of a unit's floats that belong to the row. The others are padding, which isn't changed.
inline uint32_t lanes_of(uint32_t dim, uint32_t unit) { return dim - 4 * unit < 4 ? dim - 4 * unit : 4; }

// Returns the row of the gradient that the i-th of `positions` has.
inline uint32_t row_at(const BatchGradients& gradients, uint64_t i) {
  const uint32_t position = gradients.positions[i];
  if (!gradients.bags) return position;
  const Global<const int64_t> bags{gradients.bags, gradients.positions.count};
  return static_cast<uint32_t>(bags[position]);
}

inline Float4 gradient_by_four(const BatchGradients& gradients, uint64_t row, uint32_t unit) {
  return Global<const Float4>{gradients.floats.address,
                              gradients.floats.count / 4}[(row * gradients.dim) / 4 + unit];
}
inline Float4 gradient_by_float(const BatchGradients& gradients, uint64_t row, uint32_t unit) {
  Float4 gradient{};
  uint64_t i = row * gradients.dim + 4 * unit;
  for_each_lane(lanes_of(gradients.dim, unit), [&](auto lane) { lane(gradient) = gradients.floats[i++]; });
  return gradient;
}
inline Float4 gradient_at(const BatchGradients& gradients, uint64_t row, uint32_t unit) {
  return gradients.is_float4_aligned != 0 ? gradient_by_four(gradients, row, unit)
                                          : gradient_by_float(gradients, row, unit);
}

inline float plus(float a, float b) { return a + b; }
inline Float4 plus(const Float4& a, const Float4& b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// Returns sum + at(begin) + ... + at(end - 1), added in that order.
template <uint32_t kLoadedAhead, class T, class At>
inline T add_in_order(T sum, uint64_t begin, uint64_t end, const At& at) {
  uint64_t i = begin;
  for (; i + kLoadedAhead <= end; i += kLoadedAhead) {
    T loaded[kLoadedAhead];
    EMBSTORE_UNROLL
    for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) loaded[ahead] = at(i + ahead);
    EMBSTORE_UNROLL
    for (uint32_t ahead = 0; ahead < kLoadedAhead; ++ahead) sum = plus(sum, loaded[ahead]);
  }
  for (; i < end; ++i) sum = plus(sum, at(i));
  return sum;
}

// Returns a unit of the sum of a distinct id's gradients. REQUIRES: sum_long_runs has run.
inline Float4 summed_gradient(const BatchGradients& gradients, uint64_t distinct, uint32_t unit) {
  const uint64_t begin = gradients.begins[distinct];
  const uint64_t end = gradients.ends[distinct];
  if (end - begin > kLongRun) return gradients.long_sums[long_sum_at(gradients, begin, unit)];
  const auto gradient = [&](uint64_t i) { return gradient_at(gradients, row_at(gradients, i), unit); };
  return add_in_order<4>(gradient(begin), begin + 1, end, gradient);
}

struct FindRunsArguments {
  Global<const uint32_t> sorted_numbers;  // the distinct ids' numbers, each as often as its id occurs
  Global<const uint32_t> distinct;        // one element: how many; numbers from there on are of left-out ids
  Global<uint32_t> begins;                // each number's begin in `sorted_numbers`
  Global<uint32_t> ends;                  // each number's end in `sorted_numbers`
  Global<uint32_t> long_runs;             // numbers that have a long run, in any order
  Global<uint32_t> long_count;            // one element, 0 before: how many long runs there are
};

EMBSTORE_KERNEL(find_runs, FindRunsArguments) {
  const uint64_t i = global_thread();
  const uint64_t count = arguments.sorted_numbers.count;
  if (i >= count) return;
  const uint32_t number = arguments.sorted_numbers[i];
  if (i + 1 == count || arguments.sorted_numbers[i + 1] != number) {
    arguments.ends[number] = static_cast<uint32_t>(i + 1);
  }
  if (i != 0 && arguments.sorted_numbers[i - 1] == number) return;
  arguments.begins[number] = static_cast<uint32_t>(i);
  if (i + kLongRun < count && arguments.sorted_numbers[i + kLongRun] == number &&
      number < arguments.distinct[0]) {
    arguments.long_runs[atomic_add(arguments.long_count[0], 1)] = number;
  }
}

struct SumLongRunsArguments {
  BatchGradients gradients;
  Global<const uint32_t> long_runs;
  Global<const uint32_t> long_count;
  uint32_t blocks;  // the run's number of blocks
};

// The part that a block sums at once: this many floats of a row, of this many rows.
inline constexpr uint32_t kTileFloats = 32;
inline constexpr uint32_t kTileRows = 256;
// One float more, so that threads neither write nor read at the same time in one bank of shared memory.
inline constexpr uint32_t kTileStride = kTileFloats + 1;

// `tile` is shared memory of kTileRows * kTileStride floats. gradient(row, unit) loads four floats.
template <class Tile, class Gradient>
inline void sum_runs(const SumLongRunsArguments& arguments, Tile& tile, const Gradient& gradient) {
  constexpr uint32_t kTileUnits = kTileFloats / 4;
  constexpr uint32_t kRowsAtOnce = kMaxBlockThreads / kTileUnits;
  constexpr uint32_t kLoads = kTileRows / kRowsAtOnce;  // loads of a thread
  const BatchGradients& gradients = arguments.gradients;
  const uint32_t units = units_of(gradients.dim);
  const uint32_t slices = (units + kTileUnits - 1) / kTileUnits;
  const uint64_t items = uint64_t{arguments.long_count[0]} * slices;
  const uint32_t own_row = thread_index() / kTileUnits;
  const uint32_t own_unit = thread_index() % kTileUnits;
  for (uint64_t item = block_index(); item < items; item += arguments.blocks) {
    const uint32_t distinct = arguments.long_runs[item / slices];
    const uint64_t begin = gradients.begins[distinct];
    const uint64_t end = gradients.ends[distinct];
    const uint32_t first_unit = static_cast<uint32_t>(item % slices) * kTileUnits;
    // Threads beyond the last unit or row load the last one again, so that no load waits for a branch.
    const uint32_t unit = first_unit + own_unit < units ? first_unit + own_unit : units - 1;
    const auto index_of = [&](uint64_t first, uint32_t load) {
      const uint64_t i = first + load * kRowsAtOnce + own_row;
      return i < end ? i : end - 1;
    };
    uint32_t rows[kLoads];  // those of the tile after the one in `loaded`
    Float4 loaded[kLoads];
    const auto load_tile = [&](uint64_t first) {
      EMBSTORE_UNROLL
      for (uint32_t load = 0; load < kLoads; ++load) loaded[load] = gradient(rows[load], unit);
      EMBSTORE_UNROLL
      for (uint32_t load = 0; load < kLoads; ++load) {
        rows[load] = row_at(gradients, index_of(first + kTileRows, load));
      }
    };
    EMBSTORE_UNROLL
    for (uint32_t load = 0; load < kLoads; ++load) rows[load] = row_at(gradients, index_of(begin, load));
    load_tile(begin);
    float sum = 0.0f;
    for (uint64_t first = begin; first < end; first += kTileRows) {
      EMBSTORE_UNROLL
      for (uint32_t load = 0; load < kLoads; ++load) {
        uint32_t at = (load * kRowsAtOnce + own_row) * kTileStride + 4 * own_unit;
        for_each_lane(4, [&](auto lane) { tile[at++] = lane(loaded[load]); });
      }
      sync_block();
      if (first + kTileRows < end) load_tile(first + kTileRows);
      if (thread_index() < kTileFloats) {
        const uint64_t tile_rows = end - first < kTileRows ? end - first : kTileRows;
        const auto at = [&](uint64_t row) -> float { return tile[row * kTileStride + thread_index()]; };
        sum = first == begin ? add_in_order<32>(at(0), 1, tile_rows, at)
                             : add_in_order<32>(sum, 0, tile_rows, at);
      }
      sync_block();
    }
    if (thread_index() < kTileFloats && first_unit + thread_index() / 4 < units) {
      const Global<float> sums{gradients.long_sums.address, 4 * gradients.long_sums.count};
      sums[4 * long_sum_at(gradients, begin, first_unit) + thread_index()] = sum;
    }
  }
}

// REQUIRES: blocks of kMaxBlockThreads.
EMBSTORE_KERNEL(sum_long_runs, SumLongRunsArguments) {
  EMBSTORE_SHARED(float, tile, kTileRows* kTileStride);
  if (arguments.gradients.is_float4_aligned != 0) {
    sum_runs(arguments, tile,
             [&](uint32_t row, uint32_t unit) { return gradient_by_four(arguments.gradients, row, unit); });
  } else {
    sum_runs(arguments, tile,
             [&](uint32_t row, uint32_t unit) { return gradient_by_float(arguments.gradients, row, unit); });
  }
}

struct SumGradientsArguments {
  BatchGradients gradients;
  Global<const uint32_t> chosen;  // distinct ids whose gradients are summed
  Global<const uint32_t> count;   // one element: how many of `chosen` there are
  Global<float> sums;             // `dim` floats for each chosen id; may be in pinned memory
  uint32_t blocks;                // the run's number of blocks
};

// A thread sums units that are far apart, so that the grid need not be as large as the largest batch: most
// batches choose few ids.
EMBSTORE_KERNEL(sum_gradients, SumGradientsArguments) {
  const uint32_t dim = arguments.gradients.dim;
  const uint32_t units = units_of(arguments.gradients.dim);
  const uint64_t end = uint64_t{arguments.count[0]} * units;
  const uint64_t step = uint64_t{arguments.blocks} * block_threads();
  for (uint64_t number = uint64_t{block_index()} * block_threads() + thread_index(); number < end;
       number += step) {
    const auto unit = static_cast<uint32_t>(number % units);
    Float4 sum = summed_gradient(arguments.gradients, arguments.chosen[number / units], unit);
    if (dim % 4 == 0) {
      Global<Float4>{arguments.sums.address, arguments.sums.count / 4}[number] = sum;
    } else {
      uint64_t at = number / units * dim + 4 * unit;
      for_each_lane(lanes_of(dim, unit), [&](auto lane) { arguments.sums[at++] = lane(sum); });
    }
  }
}

struct DescribeChosenArguments {
  Global<const uint32_t> positions;  // this and the next ones are as above
  Global<const uint32_t> begins;
  Global<const uint32_t> ends;
  Global<const uint32_t> chosen;
  Global<const uint32_t> count;
  Global<uint32_t> chosen_occurrences;
  Global<uint32_t> last_positions;  // in the batch
};

EMBSTORE_KERNEL(describe_chosen, DescribeChosenArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0]) return;
  const uint32_t distinct = arguments.chosen[i];
  const uint32_t end = arguments.ends[distinct];
  arguments.chosen_occurrences[i] = end - arguments.begins[distinct];
  arguments.last_positions[i] = arguments.positions[uint64_t{end} - 1];
}

}  // namespace embstore::gpu
