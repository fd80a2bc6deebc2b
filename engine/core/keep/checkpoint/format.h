// The bytes of a checkpoint's row files. engine/FORMAT.md (section CHECKPOINT) says the same in words; a
// change of one needs a change of the other, and of the version.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace embstore::checkpoint {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

inline constexpr std::array<char, 8> kMagic = {'E', 'S', 'C', 'H', 'K', 'P', 'N', 'T'};
inline constexpr uint32_t kFormatVersion = 4;
// The version of files whose sketches belong to shards that are divided by another rule; all else is as it
// is now.
inline constexpr uint32_t kSketchesOfOtherShards = 3;
// The version of files without kInitialRows; all else is as in version 3.
inline constexpr uint32_t kWithoutInitialRows = 2;
// The version of files whose keys lie in partition key modulo partition_count; all else is as in version 2.
inline constexpr uint32_t kPlacedByModulo = 1;

// Identifies the save that a file belongs to, so that files of two saves can't be mixed.
using SaveId = std::array<uint8_t, 16>;

struct FileHeader {
  std::array<char, 8> magic;
  uint32_t format_version;
  uint32_t header_bytes;
  SaveId save_id;
  uint32_t dim;
  uint32_t slot_count;
  uint32_t partition;  // by partition_of(); by another rule if the version is kPlacedByModulo
  uint32_t partition_count;
  uint32_t record_bytes;
  uint32_t flags;     // kIncremental
  uint32_t reserved;  // 0
  uint32_t checksum;  // CRC-32C of the bytes before it
};
static_assert(sizeof(FileHeader) == 64);

// Returns whether the file's keys are those that partition_of() assigns to its partition.
inline bool is_placed_by_hash(const FileHeader& file) {
  return file.format_version != kPlacedByModulo || file.partition_count == 1;
}

inline constexpr uint32_t kIncremental = 1;  // only what changed since the save before

enum BlockKind : uint32_t {
  kRows = 1,         // records, record_bytes each
  kRemovedKeys = 2,  // int64 each: removed since the save before, unless they have a row in this file
  kWaitingKeys = 3,  // WaitingKeyRecord each: below their filter's threshold
  kSketch = 4,       // SketchHeader, then the counters of one shard's filter
  kEnd = 5,          // Totals; nothing follows
  kInitialRows = 6,  // dim floats each: a key k without a row reads row k mod their number; comes first
};

struct BlockHeader {
  uint32_t kind;
  uint32_t count;  // of elements in the payload; 1 for a sketch and for the end
  uint64_t payload_bytes;
  uint64_t number;            // of the block in its file, from 0
  uint32_t payload_checksum;  // CRC-32C
  uint32_t checksum;          // CRC-32C of the bytes before it
};
static_assert(sizeof(BlockHeader) == 32);

// A row without the fields that only concern a medium. Its floats follow: the weights, then each slot, dim
// floats each, without padding.
struct RowRecord {
  int64_t key;
  uint64_t frequency;
  int64_t version;
  uint64_t served;
  uint64_t stamp;
};
static_assert(sizeof(RowRecord) == 40);

struct WaitingKeyRecord {
  int64_t key;
  uint64_t count;
  int64_t version;
};
static_assert(sizeof(WaitingKeyRecord) == 24);

struct SketchHeader {
  uint64_t counters;
  uint32_t hashes;
  uint32_t counter_bits;
  uint64_t waiting_keys;
  uint32_t shard;  // of the index
  uint32_t shard_count;
};
static_assert(sizeof(SketchHeader) == 32);

struct Totals {
  uint64_t rows;
  uint64_t removed_keys;
  uint64_t waiting_keys;
  uint64_t sketches;
};
static_assert(sizeof(Totals) == 32);

// The size that a block of rows or keys is filled to; a block with one longer row is as long as that row.
inline constexpr size_t kBlockBytes = size_t{1} << 20;

constexpr size_t record_floats(size_t dim, size_t slot_count) { return dim * (1 + slot_count); }
constexpr size_t record_bytes(size_t dim, size_t slot_count) {
  return sizeof(RowRecord) + record_floats(dim, slot_count) * sizeof(float);
}

}  // namespace embstore::checkpoint
