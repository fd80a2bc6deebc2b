// Sums rows and finds NaN and infinite values in the same pass: a second pass would read all rows again.
#pragma once

#include <cstddef>

namespace embstore {

class CheckedSums {
 public:
  // Checks a row that isn't added to another.
  void check(const float* row, size_t floats) {
    for_lanes(floats, [&]<size_t kCount>(size_t first) { check_lanes<kCount>(row + first); });
  }
  // Writes before + row to `sum`, which may be `before`, and checks `row`.
  void add(const float* before, const float* row, float* sum, size_t floats) {
    for_lanes(floats, [&]<size_t kCount>(size_t first) {
      float sums[kCount];
      for (size_t lane = 0; lane < kCount; ++lane) sums[lane] = before[first + lane] + row[first + lane];
      check_lanes<kCount>(row + first);
      for (size_t lane = 0; lane < kCount; ++lane) sum[first + lane] = sums[lane];
    });
  }
  // Returns whether all values of the rows were finite. Their sums may be infinite all the same.
  bool are_finite() const {
    float sum = 0;
    for (const float zero : zeros_) sum += zero;
    return sum == 0;
  }

 private:
  static constexpr size_t kLanes = 16;  // independent sums, so that no addition waits for the previous one

  // Calls work.operator()<COUNT>(FIRST) with constant counts, so that the compiler can vectorise it.
  template <class Work>
  static void for_lanes(size_t floats, const Work& work) {
    size_t first = 0;
    for (; first + kLanes <= floats; first += kLanes) work.template operator()<kLanes>(first);
    for (; first + 4 <= floats; first += 4) work.template operator()<4>(first);
    for (; first < floats; ++first) work.template operator()<1>(first);
  }
  template <size_t kCount>
  void check_lanes(const float* row) {
    for (size_t lane = 0; lane < kCount; ++lane) zeros_[lane] += row[lane] * 0.0f;
  }

  float zeros_[kLanes] = {};  // sums of 0 * value, which is NaN for NaN and infinity
};

}  // namespace embstore
