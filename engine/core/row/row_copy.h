// Copies rows that a writer may be changing. The caller then checks the row's guard, or the index, and drops
// the copy if it may be torn. So these data races are intended, and this is the only place that hides races
// from the thread sanitizer.
#pragma once

#include <cstddef>
#include <cstring>

#include "row/row_batch.h"
#include "row/row_layout.h"

namespace embstore {

#if defined(__SANITIZE_THREAD__)
#define EMBSTORE_RACES_ARE_MEANT __attribute__((no_sanitize("thread"), noinline))

template <int kDim>
EMBSTORE_RACES_ARE_MEANT void copy_row(float* out, const float* row, int dim) {
  const volatile float* source =
      row;  // volatile, so that the loop does not become a memcpy, which the sanitizer checks
  for (int i = 0; i < dim; ++i) out[i] = source[i];
}

EMBSTORE_RACES_ARE_MEANT inline RowMeta copy_meta(const RowMeta& meta) {
  const volatile RowMeta& source = meta;
  return {.frequency = source.frequency, .save_span = source.save_span, .version = source.version};
}

EMBSTORE_RACES_ARE_MEANT inline RowHeader copy_header(const RowHeader& header) {
  const volatile RowHeader& source = header;
  return {.key = source.key,
          .frequency = source.frequency,
          .version = source.version,
          .served = source.served,
          .stamp = source.stamp,
          .save_span = source.save_span};
}

#else

inline RowMeta copy_meta(const RowMeta& meta) { return meta; }
inline RowHeader copy_header(const RowHeader& header) { return header; }

// kDim: dim if it is known at compile time, else 0.
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
