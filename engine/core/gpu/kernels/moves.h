// Changes of the mirror, a batch of moves at a time: rows that came into the device's memory, and rows that
// left it.
#pragma once

#include "gpu/kernels/mirror.h"

namespace embstore::gpu {

struct ClearMirrorArguments {
  MirrorArrays mirror;
};

// Empties the mirror.
EMBSTORE_KERNEL(clear_mirror, ClearMirrorArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.mirror.buckets.count) return;
  Bucket bucket;
  for (uint32_t entry = 0; entry < kBucketEntries; ++entry) {
    bucket.slots[entry] = kNoSlot;
    bucket.tags[entry] = 0;
  }
  bucket.passed_by = 0;
  arguments.mirror.buckets[i] = bucket;
}

struct InsertArguments {
  MirrorArrays mirror;
  Global<const int64_t> keys;  // none twice, and none that the mirror has
  Global<const uint32_t> slots;
  Global<const uint32_t> count;  // one element: how many of `keys` there are
  Global<uint32_t> refused;      // one element: counts keys that found no free entry
};

// Enters keys: the i-th key has its row in the i-th slot.
EMBSTORE_KERNEL(insert, InsertArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0]) return;
  const int64_t key = arguments.keys[i];
  const uint32_t slot = arguments.slots[i];
  const KeyHash hash = hash_key(key);
  const uint64_t count = arguments.mirror.buckets.count;
  uint64_t at = home_bucket(hash, count);
  for (uint64_t probe = 0; probe < count; ++probe) {
    Bucket& bucket = in_place(arguments.mirror.buckets[at]);
    for (uint32_t entry = 0; entry < kBucketEntries; ++entry) {
      // Other keys of the batch may want the same entry.
      if (bucket.slots[entry] == kNoSlot &&
          atomic_exchange_if(bucket.slots[entry], kNoSlot, slot) == kNoSlot) {
        bucket.tags[entry] = tag_of(hash);
        arguments.mirror.keys[slot] = key;
        return;
      }
    }
    atomic_add(bucket.passed_by, 1);
    at = at + 1 == count ? 0 : at + 1;
  }
  for (uint64_t bucket = 0; bucket < count; ++bucket)
    atomic_sub(in_place(arguments.mirror.buckets[bucket]).passed_by, 1);
  atomic_add(arguments.refused[0], 1);
}

struct LocateArguments {
  MirrorArrays mirror;
  Global<const int64_t> keys;
  Global<uint32_t> slots;        // each key's slot, or kNoSlot
  Global<const uint32_t> count;  // one element: how many of `keys` there are
};

EMBSTORE_KERNEL(locate, LocateArguments) {
  const uint64_t i = global_thread();
  if (i < arguments.count[0]) arguments.slots[i] = find_slot(arguments.mirror, arguments.keys[i]);
}

struct EraseArguments {
  MirrorArrays mirror;
  Global<const int64_t> keys;    // none twice; empty: the keys that the mirror has for the slots
  Global<const uint32_t> slots;  // the keys' slots, as locate found them
  Global<const uint32_t> count;  // one element: how many slots there are
};

// Removes keys from the mirror. It can't look for their slots itself: a find beside it would miss keys, as
// passed_by counts go down.
EMBSTORE_KERNEL(erase, EraseArguments) {
  const uint64_t i = global_thread();
  if (i >= arguments.count[0] || arguments.slots[i] == kNoSlot) return;
  const uint32_t slot = arguments.slots[i];
  const uint64_t count = arguments.mirror.buckets.count;
  const int64_t key = arguments.keys.count == 0 ? arguments.mirror.keys[slot] : arguments.keys[i];
  uint64_t at = home_bucket(hash_key(key), count);
  for (uint64_t probe = 0; probe < count; ++probe) {
    Bucket& bucket = in_place(arguments.mirror.buckets[at]);
    for (uint32_t entry = 0; entry < kBucketEntries; ++entry) {
      if (bucket.slots[entry] != slot) continue;
      bucket.slots[entry] = kNoSlot;
      return;
    }
    atomic_sub(bucket.passed_by, 1);
    at = at + 1 == count ? 0 : at + 1;
  }
}

}  // namespace embstore::gpu
