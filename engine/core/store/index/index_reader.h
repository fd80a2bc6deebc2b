// Look-ups in the index that take no lock. See bucket.h for how a reader knows that what it read is whole.
#pragma once

#include <array>
#include <cstdint>

#include "platform/prefetch.h"
#include "row/key_hash.h"
#include "row/place.h"
#include "store/index/bucket.h"
#include "store/index/bucket_array.h"
#include "store/index/index.h"

namespace embstore {

// What a reader found: a reference (empty: no such key) that holds while `bucket` is unchanged since
// `state`.
struct IndexHit {
  const Bucket* bucket;
  uint32_t state;
  RowRef ref;

  // True if the row at `ref`, if it was read after this was found, is whole and still the key's.
  bool holds() const { return bucket->guard.unchanged_since(state); }
};

// A batch's view of the index: every shard's array, looked up once, so that an id costs one indexed load.
// REQUIRES: a guard of the epochs is held, and not refreshed, as long as the view lives.
class IndexReader {
 public:
  explicit IndexReader(const Index& index) : index_(index) {
    for (int i = 0; i < kShards; ++i) views_[static_cast<size_t>(i)] = view_of(i);
  }

  void prefetch(KeyHash hash) const {
    const ShardView& view = view_of_hash(hash);
    prefetch_line(view.buckets + home_bucket(hash, view.count));
  }

  IndexHit find(KeyHash hash, int64_t key) {
    for (;;) {
      const ShardView& view = view_of_hash(hash);
      const uint64_t home = home_bucket(hash, view.count);
      uint64_t i = home;
      uint32_t passed = 0;  // the sum of the states of the buckets from `home` to `i`
      for (;;) {
        const Bucket& bucket = view.buckets[i];
        const uint32_t state = bucket.guard.state.load(std::memory_order_acquire);
        if ((state & (RowGuard::kWriting | Bucket::kMoved)) != 0) [[unlikely]] {
          if ((state & Bucket::kMoved) != 0) break;
          __builtin_ia32_pause();
          continue;
        }
        const int entry = bucket.find(key);
        if (entry >= 0) [[likely]] {
          if (const RowRef ref = bucket.ref(entry)) [[likely]]
            return {&bucket, state, ref};
          continue;  // it went, perhaps only to another bucket, between these two looks at it
        }
        if ((state & Bucket::kOverflowed) == 0) {
          // A key that is inserted while we look may be missed: the look-up came before it. One that an
          // erasure moved back behind us may not.
          if (i == home || unchanged(view, home, i, passed)) return {&bucket, state, RowRef()};
          i = home;
          passed = 0;
          continue;
        }
        passed += state;
        if (++i == view.count) i = 0;
        if (i == home) passed = 0;
      }
      // The array was replaced since the batch began.
      const int shard = shard_of(hash);
      views_[static_cast<size_t>(shard)] = view_of(shard);
    }
  }

 private:
  struct ShardView {
    const Bucket* buckets;
    uint64_t count;
  };

  ShardView view_of(int shard) const {
    const BucketArray& buckets = index_.shard(shard).buckets();
    return {buckets.data(), buckets.count()};
  }
  const ShardView& view_of_hash(KeyHash hash) const { return views_[static_cast<size_t>(shard_of(hash))]; }

  // True if the states of the buckets from `first` up to `last` still have that sum, so that each is still
  // the same: a change only ever adds to a state.
  static bool unchanged(const ShardView& view, uint64_t first, uint64_t last, uint32_t sum) {
    for (uint64_t i = first; i != last; i = i + 1 == view.count ? 0 : i + 1) {
      sum -= view.buckets[i].guard.state_after_reads();
    }
    return sum == 0;
  }

  const Index& index_;
  std::array<ShardView, kShards> views_;
};

}  // namespace embstore
