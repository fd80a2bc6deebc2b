// A bucket of the index: one cache line with five entries and the sequence lock that guards them and
// the rows that they refer to.
//
// Writers hold the shard's mutex. Readers take no lock; the guard sits in the line that they have to load
// anyway, so it costs no cache miss.
#pragma once

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

  // The entry that has `key`, or -1. A removed entry keeps its key, hence the look at the reference.
  int find(int64_t key) const {
    const auto matches_at = [this, key](int i) {
      return static_cast<unsigned>(keys[i].load(std::memory_order_relaxed) == key) << i;
    };
    // Without branches: which entry it will be can't be predicted.
    static_assert(kEntries == 5);
    unsigned matches = matches_at(0) | matches_at(1) | matches_at(2) | matches_at(3) | matches_at(4);
    for (; matches != 0; matches &= matches - 1) {
      const int entry = std::countr_zero(matches);
      if (refs[entry].load(std::memory_order_relaxed) != 0) return entry;
    }
    return -1;
  }

  int find_empty() const {
    for (int i = 0; i < kEntries; ++i) {
      if (refs[i].load(std::memory_order_relaxed) == 0) return i;
    }
    return -1;
  }

  RowRef ref(int entry) const { return RowRef::from_raw(refs[entry].load(std::memory_order_relaxed)); }
};
static_assert(sizeof(Bucket) == 64);

}  // namespace embstore
