// A bucket of the index: one cache line with five entries and the sequence lock that guards them and
// the rows that they refer to.
//
// Writers hold the shard's mutex. Readers take no lock; the guard sits in the line that they have to load
// anyway, so it costs no cache miss.
#pragma once

#include <emmintrin.h>

#include <atomic>
#include <bit>
#include <cstdint>

#include "row/place.h"
#include "row/row_guard.h"

namespace embstore {

struct alignas(64) Bucket {
  static constexpr int kEntries = 5;

  // Flags beside the guard.
  static constexpr uint32_t kMoved = RowGuard::kFirstOwnersFlag;  // the array was replaced; load it again
  static constexpr uint32_t kOverflowed = RowGuard::kSecondOwnersFlag;  // a key was passed on to the next

  std::atomic<int64_t> keys[kEntries];
  std::atomic<uint32_t> refs[kEntries];
  RowGuard guard;  // of the entries, and of the rows that they refer to

  // Bit i is set if keys[i] is `key`. A removed entry keeps its key.
  unsigned matches(int64_t key) const {
    static_assert(kEntries == 5);
    const auto match_at = [this, key](int i) {
      return static_cast<unsigned>(keys[i].load(std::memory_order_relaxed) == key) << i;
    };
    // Without branches: which entry it will be can't be predicted.
#if defined(__SANITIZE_THREAD__)  // takes vector loads of atomics for races
    return match_at(0) | match_at(1) | match_at(2) | match_at(3) | match_at(4);
#else
    // SSE2 compares halves of keys: the lower ones of four keys at once, and their upper ones.
    const __m128 first = _mm_load_ps(reinterpret_cast<const float*>(keys));
    const __m128 second = _mm_load_ps(reinterpret_cast<const float*>(keys + 2));
    const auto equal = [](__m128 halves, int64_t half) {
      return _mm_cmpeq_epi32(_mm_castps_si128(halves), _mm_set1_epi32(static_cast<int32_t>(half)));
    };
    const __m128i lower = equal(_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0)), key);
    const __m128i upper = equal(_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)), key >> 32);
    const int of_four = _mm_movemask_ps(_mm_castsi128_ps(_mm_and_si128(lower, upper)));
    return static_cast<unsigned>(of_four) | match_at(4);
#endif
  }

  // The entry that has `key`, or -1.
  int find(int64_t key) const {
    for (unsigned left = matches(key); left != 0; left &= left - 1) {
      const int entry = std::countr_zero(left);
      if (refs[entry].load(std::memory_order_relaxed) != 0) return entry;
    }
    return -1;
  }

  // The first entry without a row, or -1.
  int find_empty() const {
#if defined(__SANITIZE_THREAD__)
    for (int i = 0; i < kEntries; ++i) {
      if (refs[i].load(std::memory_order_relaxed) == 0) return i;
    }
    return -1;
#else
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(refs));
    const int of_four = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(first, _mm_setzero_si128())));
    const int fifth = refs[4].load(std::memory_order_relaxed) == 0 ? 1 : 0;
    const auto empty = static_cast<unsigned>(of_four | fifth << 4);
    return empty == 0 ? -1 : std::countr_zero(empty);
#endif
  }

  RowRef ref(int entry) const { return RowRef::from_raw(refs[entry].load(std::memory_order_relaxed)); }
};
static_assert(sizeof(Bucket) == 64);

}  // namespace embstore
