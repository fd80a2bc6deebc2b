// The partition of a variable that a key belongs to. Partitions are tables in one process, or shards in
// several.
//
// Saves of tables with several partitions depend on this function, so it must not change: engine/FORMAT.md
// (section PARTITIONS) describes it in words, with examples.
#pragma once

#include <cstdint>

namespace embstore {

// One step of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014) from the state `key`. It differs from hash_key(), so that the keys of one partition spread
// over all shards and buckets of its index, and over its filters.
inline uint64_t partition_hash(int64_t key) {
  uint64_t h = static_cast<uint64_t>(key) + 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

// Cuts the range of hashes into `count` ranges whose sizes differ by at most one. A remainder would serve as
// well, but takes a division. It uses 64-bit integers, since kernels have no wider ones. REQUIRES: 0 < count
// <= 2^32.
inline uint64_t partition_of(int64_t key, uint64_t count) {
  const uint64_t hash = partition_hash(key);
  const uint64_t of_low_half = (hash & 0xffffffff) * count >> 32;
  return ((hash >> 32) * count + of_low_half) >> 32;
}

}  // namespace embstore
