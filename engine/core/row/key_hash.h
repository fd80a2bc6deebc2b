// The hash by which keys are found, and the shard of a table that a key belongs to.
#pragma once

#include <cstdint>

namespace embstore {

using KeyHash = uint64_t;

// A table's rows are spread over kShards shards, which are written independently.
inline constexpr int kShardBits = 4;
inline constexpr int kShards = 1 << kShardBits;

// The part of a key that its shard's index keeps: shard and key_in_shard together give the key. The shard is
// the key's low bits, permuted in a way that depends on key_in_shard.
inline uint64_t key_in_shard(int64_t key) { return static_cast<uint64_t>(key) >> kShardBits; }
// A bijection by two odd factors. With one factor, keys at equal distances would have neighbouring homes in
// their shard.
inline uint64_t spread(uint64_t x) {
  x *= 0xff51afd7ed558ccdULL;
  return (x ^ x >> 32) * 0xc4ceb9fe1a85ec53ULL;
}
inline int shard_of_key(int64_t key) {
  const uint64_t low = static_cast<uint64_t>(key) ^ spread(key_in_shard(key)) >> (64 - kShardBits);
  return static_cast<int>(low & (kShards - 1));
}
int shard_of_key(KeyHash hash) = delete;
inline int64_t key_of_shard(int shard, uint64_t key_in_shard) {
  const int64_t key_without = static_cast<int64_t>(key_in_shard << kShardBits);
  return key_without | (shard ^ shard_of_key(key_without));
}

// The finalizer of MurmurHash3 (Austin Appleby, public domain): a bijection in which every input bit
// reaches every output bit, so that consecutive ids spread over buckets.
inline KeyHash hash_key(int64_t key) {
  uint64_t h = static_cast<uint64_t>(key);
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return h ^ (h >> 33);
}

}  // namespace embstore
