// Fetching ahead of use.
#pragma once

#include <cstddef>

namespace embstore {

inline void prefetch_row(const float* row, size_t floats) {
  constexpr size_t kLineFloats = 64 / sizeof(float);
  for (size_t i = 0; i < floats; i += kLineFloats) __builtin_prefetch(row + i);
}

}  // namespace embstore
