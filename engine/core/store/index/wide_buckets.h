// Buckets whose entries have whole keys. They take any key.
#pragma once

#include <cstdint>

#include "store/index/buckets.h"

namespace embstore {

// Says where a search for a key of one shard begins, and how it goes on.
struct WideHomes {
  // The home bucket of a key, and the key to look for.
  struct Sought {
    uint32_t home;
    int64_t key;
  };

  Bucket* first;
  uint64_t count;

  Sought seek(int64_t key) const { return {home_bucket(key, count), key}; }
  uint32_t max_passed() const { return static_cast<uint32_t>(count - 1); }
  static int find(const Bucket& bucket, uint32_t /*passed*/, const Sought& sought) {
    return bucket.find_key(sought.key);
  }
};

class WideBuckets : public Buckets {
 public:
  static constexpr int kEntries = Bucket::kKeyed;
  // Above this load, probes that leave their home bucket cost more than the saved memory is worth.
  static uint32_t count_for(uint64_t keys) { return Buckets::count_for(keys, 0.75 * kEntries); }
  using Sought = WideHomes::Sought;

  using Buckets::Buckets;

  WideHomes homes() const { return {first_, count_}; }
  Sought seek(int64_t key) const { return homes().seek(key); }

  void set(uint32_t i, int entry, uint32_t /*passed*/, const Sought& sought) const {
    first_[i].key(entry).store(sought.key, std::memory_order_relaxed);
  }
  int64_t key(uint32_t i, int entry) const { return first_[i].key(entry); }
  Sought sought_at(uint32_t i, int entry) const { return seek(key(i, entry)); }
  // Returns the number of buckets that passed on the key of this entry.
  uint32_t passed(uint32_t i, int entry) const { return distance(sought_at(i, entry).home, i); }
};

}  // namespace embstore
