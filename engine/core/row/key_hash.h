// What a key is found by, and which of a table's shards it belongs to.
#pragma once

#include <cstdint>

namespace embstore {

using KeyHash = uint64_t;

// The finalizer of MurmurHash3 (Austin Appleby, public domain): a bijection in which every input bit
// reaches every output bit, so that consecutive ids spread over shards and buckets.
inline KeyHash hash_key(int64_t key) {
  uint64_t h = static_cast<uint64_t>(key);
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return h ^ (h >> 33);
}

// A table's rows are spread over so many shards, which are written independently.
inline constexpr int kShardBits = 4;
inline constexpr int kShards = 1 << kShardBits;

// By the top bits; the low half of the hash chooses the place within a shard.
inline int shard_of(KeyHash hash) { return static_cast<int>(hash >> (64 - kShardBits)); }

}  // namespace embstore
