// Look-ups in the index that take no lock. See bucket.h for how a reader knows that what it read is whole.
#pragma once

#include <array>
#include <bit>
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
  // A key's bucket is fetched so many keys before it is probed.
  static constexpr size_t kBucketsFetchedAhead = 16;

  explicit IndexReader(const Index& index) : index_(index) {
    for (int i = 0; i < kShards; ++i) views_[static_cast<size_t>(i)] = view_of(i);
  }

  // The bucket in which a search for the key begins.
  const Bucket& home(KeyHash hash) const {
    const ShardView& view = view_of_hash(hash);
    return view.buckets[home_bucket(hash, view.count)];
  }
  void prefetch(KeyHash hash) const { prefetch_line(&home(hash)); }

  IndexHit find(KeyHash hash, int64_t key) { return find(home(hash), key); }
  // `home` is the key's. The array that it's of may have been replaced since.
  [[gnu::always_inline]] IndexHit find(const Bucket& home, int64_t key) {
    const uint32_t state = home.guard.state.load(std::memory_order_acquire);
    if ((state & (RowGuard::kWriting | Bucket::kMoved)) == 0) [[likely]] {
      // Nearly always the first entry that matches: the others are removed ones.
      const unsigned matches = home.matches(key);
      if (matches != 0) [[likely]] {
        if (const RowRef ref = home.ref(std::countr_zero(matches))) [[likely]]
          return {&home, state, ref};
      } else if ((state & Bucket::kOverflowed) == 0) {
        return {&home, state, RowRef()};
      }
    }
    return find_further(key);
  }

  // Where the key's row was at one moment of the call; empty: it had none.
  RowRef place_of(int64_t key) {
    const KeyHash hash = hash_key(key);
    IndexHit hit = find(hash, key);
    while (!hit.holds()) hit = find(hash, key);
    return hit.ref;
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

  // find() for a key that isn't in its home bucket, or only beside a removed entry of its own, or where the bucket is being
  // changed. Out of line: it would take the registers of the loops that find() stands in.
  IndexHit find_further(int64_t key);

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
