// Prefetches memory into the processor's caches.
#pragma once

#include <cstddef>

namespace embstore {

// Prefetches one cache line. Use this rather than the builtin: GCC takes a function that has only
// builtins for one without effects, and drops calls of it that it doesn't inline early. The empty
// statement is an effect.
inline void prefetch_line(const void* address) {
  __builtin_prefetch(address);
  asm volatile("");
}

inline void prefetch_bytes(const void* address, size_t bytes) {
  constexpr size_t kLineBytes = 64;
  for (size_t i = 0; i < bytes; i += kLineBytes) prefetch_line(static_cast<const char*>(address) + i);
}

inline void prefetch_row(const float* row, size_t floats) { prefetch_bytes(row, floats * sizeof(float)); }

}  // namespace embstore
