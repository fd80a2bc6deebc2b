// Look-ups in the index that take no lock. See bucket.h for how a reader knows that what it read is
// consistent.
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

// The result of a reader's search: a reference (empty: no such key) that is valid while `bucket` is unchanged
// since `state`.
struct IndexHit {
  const Bucket* bucket;
  uint32_t state;
  RowRef ref;

  // True if a row that was read at `ref` after this was found is whole and still belongs to the key.
  bool is_valid() const { return bucket->guard.unchanged_since(state); }
};

// A batch's view of the index: it loads every shard's array once, so that each id costs one indexed load.
// REQUIRES: a guard of the epochs is held, and not refreshed, as long as the view lives.
class IndexReader {
 public:
  // A key's bucket is prefetched this many keys before it is probed.
  static constexpr size_t kBucketsFetchedAhead = 16;

  explicit IndexReader(const Index& index) : index_(index) {
    for (int shard = 0; shard < kShards; ++shard) look_at(shard, index.shard(shard).buckets());
  }

  // True if no shard has compact buckets. Then keys can be looked up with kAllWide, which takes a loop a
  // tenth less time.
  bool all_are_wide() const { return !has_compact_; }

  // The bucket at which a search for a key begins, and the tag to look for, or kWholeKey.
  struct Home {
    const Bucket* bucket;
    uint32_t tag;
  };
  template <bool kAllWide = false>
  Home home(int64_t key) const {
    const auto shard = static_cast<size_t>(shard_of_key(key));
    if (const CompactHomes& compact = compact_[shard]; !kAllWide && compact.count != 0) {
      const CompactHomes::Sought sought = compact.seek_any(key);
      return {compact.first + sought.home, sought.rest};
    }
    return {wide_[shard].first + wide_[shard].seek(key).home, kWholeKey};
  }
  void prefetch(int64_t key) const { prefetch_line(home(key).bucket); }

  IndexHit find(int64_t key) { return find(home(key), key); }
  // `home` is the key's home. Its array may have been replaced since.
  template <bool kAllWide = false>
  [[gnu::always_inline]] IndexHit find(const Home& home, int64_t key) {
    const Bucket& bucket = *home.bucket;
    const uint32_t state = bucket.guard.state.load(std::memory_order_acquire);
    if ((state & (RowGuard::kWriting | Bucket::kMoved)) == 0) [[likely]] {
      const unsigned matches = kAllWide || home.tag == kWholeKey
                                   ? bucket.matches_of_key(key)
                                   : bucket.matches_of_tag(static_cast<uint16_t>(home.tag));
      // The first match nearly always has a row: others are removed entries.
      if (matches != 0) [[likely]] {
        if (const RowRef ref = bucket.ref(std::countr_zero(matches))) [[likely]]
          return {&bucket, state, ref};
      } else if ((state & (Bucket::kOverflowed | Bucket::kHasStashed)) == 0) {
        return {&bucket, state, RowRef()};
      }
    }
    return find_further(home, key);
  }

  // Returns where the key's row was at one moment of the call; empty if it had no row.
  RowRef place_of(int64_t key) {
    IndexHit hit = find(key);
    while (!hit.is_valid()) hit = find(key);
    return hit.ref;
  }

 private:
  static constexpr uint32_t kWholeKey = 1u << 16;  // greater than any tag

  void look_at(int shard, const BucketArray& array) {
    compact_[static_cast<size_t>(shard)] = array.compact().homes();
    wide_[static_cast<size_t>(shard)] = array.wide().homes();
    has_compact_ |= array.is_compact();
  }

  // find() for a key that isn't in its home bucket, or is there beside a removed entry of its own, or whose
  // bucket is being changed. Not inlined: it would take the registers of the loops that call find().
  IndexHit find_further(const Home& home, int64_t key);

  const Index& index_;
  std::array<CompactHomes, kShards> compact_;
  std::array<WideHomes, kShards> wide_;
  bool has_compact_ = false;
};

}  // namespace embstore
