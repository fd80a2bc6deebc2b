// A bucket of the index: one cache line of entries, with the sequence lock that guards them and the rows that
// they refer to.
//
// Writers hold the shard's mutex. Readers take no lock; the guard lies in the cache line that they load
// anyway, so it costs no cache miss.
//
// There are two kinds of buckets. One has ten entries, each with a tag: the bits of a key that, with the
// bucket's position, identify the whole key (compact_buckets.h). The other has five entries, each with a
// whole key (wide_buckets.h).
#pragma once

#include <emmintrin.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "row/place.h"
#include "row/row_guard.h"

namespace embstore {

struct alignas(64) Bucket {
  static constexpr int kTagged = 10;  // entries with a tag
  static constexpr int kKeyed = 5;    // entries with a key

  // Flags beside the guard.
  static constexpr uint32_t kMoved = RowGuard::kFirstOwnersFlag;  // the array was replaced: load it again
  static constexpr uint32_t kOverflowed = RowGuard::kSecondOwnersFlag;  // passed a key on to the next
  // In a bucket of tags: the array's stash (bucket_array.h) has a key whose home is this bucket.
  static constexpr uint32_t kHasStashed = RowGuard::kThirdOwnersFlag;

  RowGuard guard;  // guards the entries, and the rows that they refer to
  // References, which are zero if the entry has no row; behind them tags or keys.
  std::atomic<uint32_t> words[15];

  std::atomic<uint16_t>& tag(int entry) {
    return reinterpret_cast<std::atomic<uint16_t>*>(words + kTagged)[entry];
  }
  uint16_t tag(int entry) const {
    return const_cast<Bucket*>(this)->tag(entry).load(std::memory_order_relaxed);
  }
  std::atomic<int64_t>& key(int entry) {
    return reinterpret_cast<std::atomic<int64_t>*>(words + kKeyed)[entry];
  }
  int64_t key(int entry) const {
    return const_cast<Bucket*>(this)->key(entry).load(std::memory_order_relaxed);
  }

  RowRef ref(int entry) const { return RowRef::from_raw(words[entry].load(std::memory_order_relaxed)); }
  void set_ref(int entry, RowRef ref) { words[entry].store(ref.raw(), std::memory_order_relaxed); }

  bool is_overflowed() const { return has(kOverflowed); }
  bool has_stashed() const { return has(kHasStashed); }

  // Bit i is set if entry i has this tag. A removed entry keeps its tag.
  unsigned matches_of_tag(uint16_t sought) const {
#if defined(__SANITIZE_THREAD__)  // it reports vector loads of atomics as races
    unsigned matches = 0;
    for (int i = 0; i < kTagged; ++i) matches |= static_cast<unsigned>(tag(i) == sought) << i;
    return matches;
#else
    const __m128i tags = _mm_set1_epi16(static_cast<int16_t>(sought));
    const __m128i first = _mm_cmpeq_epi16(load(kTagged), tags);     // entries 0 to 7
    const __m128i last = _mm_cmpeq_epi16(load(kTagged + 1), tags);  // entries 2 to 9
    const auto both = static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(first, last)));
    return (both & 0xff) | (both >> 6 & 0x300);
#endif
  }

  // Bit i is set if entry i has this key. A removed entry keeps its key.
  unsigned matches_of_key(int64_t sought) const {
    static_assert(kKeyed == 5);
    const auto match_at = [this, sought](int i) { return static_cast<unsigned>(key(i) == sought) << i; };
    // Without branches, since the position of the match can't be predicted.
#if defined(__SANITIZE_THREAD__)
    return match_at(0) | match_at(1) | match_at(2) | match_at(3) | match_at(4);
#else
    // SSE2 compares 32-bit halves of keys: the lower halves of four keys at once, and their upper halves.
    const __m128 first = _mm_castsi128_ps(load(kKeyed));
    const __m128 second = _mm_castsi128_ps(load(kKeyed + 4));
    const auto equal = [](__m128 halves, int64_t half) {
      return _mm_cmpeq_epi32(_mm_castps_si128(halves), _mm_set1_epi32(static_cast<int32_t>(half)));
    };
    const __m128i lower = equal(_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0)), sought);
    const __m128i upper = equal(_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)), sought >> 32);
    const int of_four = _mm_movemask_ps(_mm_castsi128_ps(_mm_and_si128(lower, upper)));
    return static_cast<unsigned>(of_four) | match_at(4);
#endif
  }

  // Returns the entry that has the tag, or the key, and also a row; or -1.
  int find_tag(uint16_t sought) const { return first_with_row(matches_of_tag(sought)); }
  int find_key(int64_t sought) const { return first_with_row(matches_of_key(sought)); }

  // Returns the first of `entries` without a row, or -1.
  int find_empty(int entries) const {
#if defined(__SANITIZE_THREAD__)
    for (int i = 0; i < entries; ++i) {
      if (!ref(i)) return i;
    }
    return -1;
#else
    const auto are_zero = [this](int word) {
      return static_cast<unsigned>(
          _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(load(word), _mm_setzero_si128()))));
    };
    // The loads may include words behind the references; their bits are masked out.
    const unsigned empty = (are_zero(0) | are_zero(4) << 4 | are_zero(8) << 8) & ((1u << entries) - 1);
    return empty == 0 ? -1 : std::countr_zero(empty);
#endif
  }

 private:
  __m128i load(int word) const { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(words + word)); }
  bool has(uint32_t flag) const { return (guard.state.load(std::memory_order_relaxed) & flag) != 0; }
  int first_with_row(unsigned matches) const {
    for (; matches != 0; matches &= matches - 1) {
      const int entry = std::countr_zero(matches);
      if (ref(entry)) return entry;
    }
    return -1;
  }
};
static_assert(sizeof(Bucket) == 64);

}  // namespace embstore
