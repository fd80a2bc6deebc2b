// A bucket of the index: one cache line with five entries and the sequence lock that guards them and
// the rows that they refer to.
//
// Writers hold the shard's mutex and bracket every change, to an entry or to a row, with a BucketWrite.
// Readers take no lock: they note `state`, copy what they want, and accept the copy if `state` is still
// the same. The lock sits in the line that a reader has to load anyway, so it costs no cache miss.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace embstore {

// Where a row is: its tier (two bits) and its slot there. The raw value 0 marks an empty entry, so zeroed
// memory is a valid, empty bucket.
class RowRef {
 public:
  static constexpr uint32_t kMaxTiers = 4;
  static constexpr uint32_t kMaxSlots = (uint32_t{1} << 30) - 2;

  RowRef() = default;
  RowRef(uint32_t tier, uint32_t slot) : raw_(((tier << 30) | slot) + 1) {}
  static RowRef from_raw(uint32_t raw) {
    RowRef ref;
    ref.raw_ = raw;
    return ref;
  }

  explicit operator bool() const { return raw_ != 0; }
  uint32_t raw() const { return raw_; }
  uint32_t tier() const { return (raw_ - 1) >> 30; }
  uint32_t slot() const { return (raw_ - 1) & ((uint32_t{1} << 30) - 1); }
  bool operator==(const RowRef&) const = default;

 private:
  uint32_t raw_ = 0;
};

struct alignas(64) Bucket {
  static constexpr int kEntries = 5;

  // Bits of `state`; the bits above them count changes. A reader that sleeps through exactly 2^29 changes
  // of one bucket would be deceived; no copy of a row takes that long.
  static constexpr uint32_t kWriting = 1;     // a change is under way
  static constexpr uint32_t kMoved = 2;       // the array was replaced; load the shard's pointer again
  static constexpr uint32_t kOverflowed = 4;  // an entry whose home this is lies in a later bucket
  static constexpr uint32_t kOneChange = 8;

  std::atomic<int64_t> keys[kEntries];
  std::atomic<uint32_t> refs[kEntries];
  std::atomic<uint32_t> state;

  // The entry that has `key`, or -1. A removed entry keeps its key, hence the look at the reference.
  int find(int64_t key) const {
    const auto matches_at = [this, key](int i) {
      return static_cast<unsigned>(keys[i].load(std::memory_order_relaxed) == key) << i;
    };
    // Without branches: which entry it will be can't be predicted.
    static_assert(kEntries == 5);
    unsigned matches =
        matches_at(0) | matches_at(1) | matches_at(2) | matches_at(3) | matches_at(4);
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

  RowRef ref(int entry) const {
    return RowRef::from_raw(refs[entry].load(std::memory_order_relaxed));
  }

  // True if nothing changed since `state` was noted, so that everything read in between is whole.
  bool unchanged_since(uint32_t noted) const {
#if defined(__SANITIZE_THREAD__)
    // The sanitizer doesn't model fences; a read-modify-write orders as much.
    return const_cast<std::atomic<uint32_t>&>(state).fetch_add(0, std::memory_order_acq_rel) == noted;
#else
    std::atomic_thread_fence(std::memory_order_acquire);
    return state.load(std::memory_order_relaxed) == noted;
#endif
  }
};
static_assert(sizeof(Bucket) == 64);

// The scope of one change. REQUIRES: the shard's mutex is held.
class BucketWrite {
 public:
  explicit BucketWrite(Bucket& bucket)
      : bucket_(bucket), state_(bucket.state.load(std::memory_order_relaxed)) {
#if defined(__SANITIZE_THREAD__)
    bucket_.state.exchange(state_ | Bucket::kWriting, std::memory_order_acq_rel);
#else
    bucket_.state.store(state_ | Bucket::kWriting, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
#endif
  }
  ~BucketWrite() { bucket_.state.store(state_ + Bucket::kOneChange, std::memory_order_release); }
  BucketWrite(const BucketWrite&) = delete;
  BucketWrite& operator=(const BucketWrite&) = delete;

  void mark_overflowed() { state_ |= Bucket::kOverflowed; }

 private:
  Bucket& bucket_;
  uint32_t state_;
};

}  // namespace embstore
