// Which of a variable's partitions a key lies in: tables of one process, or shards in others.
//
// Kept on media by every table of several partitions, so it stays as it is: engine/FORMAT.md (section
// PARTITIONS) says the same in words, with examples.
#pragma once

#include <cstdint>

namespace embstore {

// One step of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators",
// OOPSLA 2014) from the state `key`. Another bijection than hash_key(): so the keys of one partition are
// spread over all of its index's shards and buckets, and over its filters.
inline uint64_t partition_hash(int64_t key) {
  uint64_t h = static_cast<uint64_t>(key) + 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

// The hashes are cut into `count` ranges, of which none has two more than another. A remainder would do the
// same, but takes a division. In 64 bits, since a GPU's kernels have no more. REQUIRES: 0 < count <= 2^32.
inline uint64_t partition_of(int64_t key, uint64_t count) {
  const uint64_t hash = partition_hash(key);
  const uint64_t of_low_half = (hash & 0xffffffff) * count >> 32;
  return ((hash >> 32) * count + of_low_half) >> 32;
}

}  // namespace embstore
