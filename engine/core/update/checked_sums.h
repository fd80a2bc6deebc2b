// Sums of rows, by which it is known in the end whether a value of them was NaN or infinite: to look for those apart would read all
// rows once more.
#pragma once

#include <cstddef>

namespace embstore {

class CheckedSums {
 public:
  // Takes a row that isn't summed.
  void see(const float* row, size_t floats) {
    for_lanes(floats, [&]<size_t kCount>(size_t first) { see_lanes<kCount>(row + first); });
  }
  // sum = before + row, where `sum` may be `before`.
  void add(const float* before, const float* row, float* sum, size_t floats) {
    for_lanes(floats, [&]<size_t kCount>(size_t first) {
      float sums[kCount];
      for (size_t lane = 0; lane < kCount; ++lane) sums[lane] = before[first + lane] + row[first + lane];
      see_lanes<kCount>(row + first);
      for (size_t lane = 0; lane < kCount; ++lane) sum[first + lane] = sums[lane];
    });
  }
  // Whether all values of the rows were finite; their sums may be infinite even so.
  bool saw_only_finite() const {
    float sum = 0;
    for (const float zero : zeros_) sum += zero;
    return sum == 0;
  }

 private:
  static constexpr size_t kLanes = 16;  // so that no addition waits for the one before it

  // Calls see.operator()<COUNT>(FIRST) with constant counts, which the compiler makes vectors of.
  template <class See>
  static void for_lanes(size_t floats, const See& see) {
    size_t first = 0;
    for (; first + kLanes <= floats; first += kLanes) see.template operator()<kLanes>(first);
    for (; first + 4 <= floats; first += 4) see.template operator()<4>(first);
    for (; first < floats; ++first) see.template operator()<1>(first);
  }
  template <size_t kCount>
  void see_lanes(const float* row) {
    for (size_t lane = 0; lane < kCount; ++lane) zeros_[lane] += row[lane] * 0.0f;
  }

  float zeros_[kLanes] = {};  // 0 times what was seen: NaN for NaN and infinity
};

}  // namespace embstore
