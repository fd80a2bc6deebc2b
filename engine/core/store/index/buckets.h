// A circular array of buckets. A key lies in its home bucket or, if that was full, in the first bucket after
// it that had room.
#pragma once

#include <cmath>
#include <cstdint>

#include "row/key_hash.h"
#include "store/index/bucket.h"

namespace embstore {

// The home of a key of a shard among `count` buckets, from the bits of its spread that don't choose the
// shard.
inline uint32_t home_bucket(int64_t key, uint64_t count) {
  return static_cast<uint32_t>((spread(key_in_shard(key)) << kShardBits >> 32) * count >> 32);
}

class Buckets {
 public:
  Buckets(Bucket* first, uint32_t count) : first_(first), count_(count) {}

  // Returns the number of buckets for `keys` keys, with `keys_a_bucket` on average.
  static uint32_t count_for(uint64_t keys, double keys_a_bucket) {
    return static_cast<uint32_t>(std::ceil(static_cast<double>(keys) / keys_a_bucket));
  }

  uint32_t count() const { return count_; }
  Bucket& operator[](uint32_t i) const { return first_[i]; }
  bool contains(const Bucket& bucket) const { return &bucket >= first_ && &bucket < first_ + count_; }
  uint32_t position(const Bucket& bucket) const { return static_cast<uint32_t>(&bucket - first_); }

  // These wrap around the end.
  uint32_t next(uint32_t i) const { return i + 1 == count_ ? 0 : i + 1; }
  uint32_t previous(uint32_t i) const { return i == 0 ? count_ - 1 : i - 1; }
  uint32_t distance(uint32_t from, uint32_t to) const { return to >= from ? to - from : to + count_ - from; }

 protected:
  Bucket* first_;
  uint32_t count_;
};

}  // namespace embstore
