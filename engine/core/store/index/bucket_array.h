// The buckets of one shard at one time. Growing or shrinking makes a new array; readers that still hold the
// old one are told by its buckets' kMoved flags.
#pragma once

#include <cstdint>

#include "memory/shared_pages.h"
#include "row/key_hash.h"
#include "store/index/bucket.h"
#include "threads/epochs.h"

namespace embstore {

// The home of a hash among `count` buckets. By the low half of the hash; its top bits choose the shard.
inline uint32_t home_bucket(KeyHash hash, uint64_t count) {
  return static_cast<uint32_t>((hash & 0xffffffffu) * count >> 32);
}

class BucketArray : public Retirable {
 public:
  // Throws Error(kStorage) or std::bad_alloc where there is no memory.
  explicit BucketArray(uint32_t count)
      : buckets_(static_cast<Bucket*>(take_shared_pages(count * sizeof(Bucket)))), count_(count) {}
  ~BucketArray() override { give_shared_pages_back(buckets_, count_ * sizeof(Bucket)); }
  BucketArray(const BucketArray&) = delete;
  BucketArray& operator=(const BucketArray&) = delete;

  uint32_t count() const { return count_; }
  const Bucket* data() const { return buckets_; }
  Bucket& operator[](uint32_t i) const { return buckets_[i]; }
  uint32_t position(const Bucket& bucket) const { return static_cast<uint32_t>(&bucket - buckets_); }

  // Around the end.
  uint32_t next(uint32_t i) const { return i + 1 == count_ ? 0 : i + 1; }
  uint32_t previous(uint32_t i) const { return i == 0 ? count_ - 1 : i - 1; }
  uint32_t distance(uint32_t from, uint32_t to) const { return to >= from ? to - from : to + count_ - from; }

 private:
  Bucket* const buckets_;
  const uint32_t count_;
};

}  // namespace embstore
