// Copies of rows that a writer may be changing. The copy is checked against the bucket's sequence lock
// afterwards and thrown away if it is torn, so the race is meant; the thread sanitizer is told so here and
// nowhere else.
#pragma once

#include <cstddef>
#include <cstring>

#include "row/row_layout.h"

namespace embstore {

#if defined(__SANITIZE_THREAD__)

template <int kDim>
__attribute__((no_sanitize("thread"), noinline)) void copy_row(float* out, const float* row, int dim) {
  const volatile float* source = row;  // volatile, or the loop becomes an intercepted memcpy
  for (int i = 0; i < dim; ++i) out[i] = source[i];
}

__attribute__((no_sanitize("thread"), noinline)) inline RowMeta copy_meta(const RowMeta& meta) {
  const volatile RowMeta& source = meta;
  return {.frequency = source.frequency, .save_span = source.save_span, .version = source.version};
}

#else

inline RowMeta copy_meta(const RowMeta& meta) { return meta; }

// kDim is `dim` where the compiler may know it, else 0.
template <int kDim>
inline void copy_row(float* __restrict out, const float* __restrict row, int dim) {
  if constexpr (kDim != 0) {
    std::memcpy(out, row, kDim * sizeof(float));
  } else {
    // Rows are short: a loop beats a call of memcpy.
    int i = 0;
    for (; i + 4 <= dim; i += 4) std::memcpy(out + i, row + i, 4 * sizeof(float));
    for (; i < dim; ++i) out[i] = row[i];
  }
}

#endif

}  // namespace embstore
