// The mirror of the host's index: says which keys have a row in the device's memory, and in which slot.
//
// It is an open-addressed table of buckets of 64 bytes. A bucket has a tag (eight bits of the hash) and a
// slot for each of its entries. The keys lie beside the rows, in an array by slot, so that a find reads one
// bucket, and one key for each tag that fits. A key that finds its bucket full goes to the next bucket, and
// each bucket that it passed counts it; a find goes on only from a bucket that keys have passed. So removing
// leaves no tombstones, and a full bucket hides nothing.
//
// Moves change the mirror, in kernels of their own. They must run neither beside finds nor beside each other.
#pragma once

#include "gpu/kernels/language.h"
#include "row/key_hash.h"

namespace embstore::gpu {

inline constexpr uint32_t kBucketEntries = 12;
inline constexpr uint32_t kNoSlot = 0xffffffff;

struct alignas(16) Bucket {
  uint32_t slots[kBucketEntries];  // kNoSlot: the entry is free
  uint8_t tags[kBucketEntries];
  uint32_t passed_by;  // counts keys of the mirror that found no free entry here
};
static_assert(sizeof(Bucket) == 64);

struct MirrorArrays {
  Global<Bucket> buckets;
  Global<int64_t> keys;  // by slot
};

// The home bucket comes from the low half of the hash, the tag from the high half.
inline uint64_t home_bucket(KeyHash hash, uint64_t buckets) { return ((hash & 0xffffffff) * buckets) >> 32; }
inline uint8_t tag_of(KeyHash hash) { return static_cast<uint8_t>(hash >> 56); }

// Returns the slot of a key, or kNoSlot.
inline uint32_t find_slot(const MirrorArrays& mirror, int64_t key) {
  const KeyHash hash = hash_key(key);
  const uint8_t tag = tag_of(hash);
  const uint64_t count = mirror.buckets.count;
  uint64_t at = home_bucket(hash, count);
  for (uint64_t probe = 0; probe < count; ++probe) {
    const Bucket bucket = mirror.buckets[at];
    EMBSTORE_UNROLL
    for (uint32_t i = 0; i < kBucketEntries; ++i) {
      if (bucket.tags[i] == tag && bucket.slots[i] != kNoSlot && mirror.keys[bucket.slots[i]] == key) {
        return bucket.slots[i];
      }
    }
    if (bucket.passed_by == 0) return kNoSlot;
    at = at + 1 == count ? 0 : at + 1;
  }
  return kNoSlot;
}

}  // namespace embstore::gpu
