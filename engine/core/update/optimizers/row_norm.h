// The Euclidean norm of a row.
#pragma once

#include <cmath>

namespace embstore {

// Sums in eight interleaved lanes, and these in a fixed order: the compiler may then use vector
// registers of any width, and the result is the same with all of them.
inline double row_norm(const float* row, int dim) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = row[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (int lane = 0; i < dim; ++i, ++lane) {
    const double value = row[i];
    lanes[lane] += value * value;
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return std::sqrt(sum);
}

}  // namespace embstore
