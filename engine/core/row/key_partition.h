// Which of a variable's partitions a key lies in: tables of one process, or shards in others.
//
// Kept on media by every table of several partitions, so it stays as it is: engine/FORMAT.md (section
// PARTITIONS) says the same in words, with examples.
#pragma once

#include <cstddef>
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
// same, but takes a division.
inline size_t partition_of(int64_t key, size_t count) {
  __extension__ using Product = unsigned __int128;
  return static_cast<size_t>(Product{partition_hash(key)} * count >> 64);
}

}  // namespace embstore
