// The bytes of a record file. engine/FORMAT.md (section SSDHASH) says the same in words; whoever changes
// one changes the other, and the version.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "platform/crc32c.h"
#include "row/row_batch.h"
#include "row/row_layout.h"

namespace embstore::ssd_hash {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

inline constexpr char kMagic[8] = {'E', 'S', 'S', 'S', 'D', 'H', 'S', 'H'};
inline constexpr uint32_t kFormatVersion = 2;
// Of files with rows of checkpoints. Engines that know of version 2 alone leave them alone.
inline constexpr uint32_t kCheckpointsVersion = 3;

// Every write begins and ends at a multiple of this, so that O_DIRECT takes it.
inline constexpr size_t kBlockBytes = 4096;
inline constexpr size_t kHeaderBytes = kBlockBytes;

struct FileHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;
  uint64_t file_number;    // of the order in which the files were begun, from 1
  uint64_t variable_hash;  // FNV-1a of the variable's name
  uint32_t dim;
  uint32_t slot_count;
  uint32_t row_bytes;  // of a row's floats, padding included
  uint32_t record_bytes;
  uint32_t record_capacity;  // records that the file may hold
  uint32_t flags;            // kKept, kOfCheckpoints
  uint32_t sealed;           // 1 once nothing is appended any more
  uint32_t sealed_records;   // records that were appended; 0 until sealed
  uint32_t reserved;         // 0
  uint32_t checksum;         // CRC-32C of the bytes before it
};
static_assert(sizeof(FileHeader) == 72);

inline constexpr uint32_t kKept = 1;           // the files are to outlive the process that writes them
inline constexpr uint32_t kOfCheckpoints = 2;  // so far as checkpoints need them; then `sealed` stays 0

enum RecordKind : uint16_t {
  kNothing = 0,     // never written: all bytes are zero
  kRow = 1,         // header and floats of a row
  kTombstones = 2,  // `count` keys in place of the floats: rows of lower sequence numbers are gone
  kVoid = 3,        // says nothing
};

// Two checksums, so that whoever wants the weights alone needn't touch the slots.
struct RecordHeader {
  uint32_t checksum;  // CRC-32C of what follows, up to the end of the first block of floats, the weights'
  uint16_t kind;
  uint16_t count;     // keys of kTombstones, else 0
  uint64_t sequence;  // of the order in which rows and tombstones were made, from 1
  int64_t key;        // from here to save_span: zero where there is no row
  uint64_t frequency;
  int64_t version;
  uint64_t served;
  uint64_t stamp;
  uint32_t save_span;
  uint32_t slots_checksum;  // CRC-32C of the record's bytes after the first block of floats

  static RecordHeader of(uint64_t sequence_number, const RowHeader& row) {
    return {.checksum = 0,
            .kind = kRow,
            .count = 0,
            .sequence = sequence_number,
            .key = row.key,
            .frequency = row.frequency,
            .version = row.version,
            .served = row.served,
            .stamp = row.stamp,
            .save_span = static_cast<uint32_t>(row.save_span),
            .slots_checksum = 0};
  }
  RowHeader row() const { return {key, frequency, version, served, stamp, save_span}; }
};
static_assert(sizeof(RecordHeader) == 64);

// The note beside the files that are kept, see sequence_note.h: this, then how far the numbers had come when
// records got them, and when they were written out, eight bytes each; then zeros.
inline constexpr char kNoteName[] = "sequence.ssdhash";
inline constexpr char kNoteMagic[8] = {'E', 'S', 'S', 'S', 'D', 'S', 'E', 'Q'};
inline constexpr size_t kNoteBytes = 4096;
inline constexpr size_t kOptimizerBytes = 32;

struct NoteHeader {
  char magic[8];
  uint32_t format_version;  // kFormatVersion
  uint32_t header_bytes;
  uint64_t variable_hash;           // as in FileHeader
  char optimizer[kOptimizerBytes];  // its name, filled up with zeros
  uint32_t reserved;                // 0
  uint32_t checksum;                // CRC-32C of the bytes before it
};
static_assert(sizeof(NoteHeader) == 64);

// A checkpoint: this, for each file CheckpointedFile and the words of its bits, and the CRC-32C of all before it.
inline constexpr char kCheckpointMagic[8] = {'E', 'S', 'S', 'S', 'D', 'C', 'K', 'P'};

struct CheckpointHeader {
  char magic[8];
  uint32_t format_version;  // kCheckpointsVersion
  uint32_t header_bytes;
  uint64_t number;
  uint8_t id[16];
  uint64_t variable_hash;  // as in FileHeader, and so the next four
  uint32_t dim;
  uint32_t slot_count;
  uint32_t row_bytes;
  uint32_t record_bytes;
  char optimizer[kOptimizerBytes];  // its name, filled up with zeros
  uint64_t rows;
  uint64_t files;
  uint64_t next_file_number;  // numbers from here on weren't given out when it was written
  uint64_t next_sequence;
};
static_assert(sizeof(CheckpointHeader) == 128);

struct CheckpointedFile {
  uint64_t number;
  uint32_t record_capacity;
  uint32_t records;  // a bit for each follows, in words of eight bytes
};
static_assert(sizeof(CheckpointedFile) == 16);

// The bytes of each record of a table.
struct RecordShape {
  explicit RecordShape(const RowLayout& layout)
      : bytes(sizeof(RecordHeader) + layout.row_bytes()),
        weights_end(sizeof(RecordHeader) + layout.block_floats() * sizeof(float)) {}

  size_t bytes;
  size_t weights_end;  // what the first checksum covers, but for itself
};
inline size_t tombstones_per_record(const RowLayout& layout) { return layout.row_bytes() / sizeof(int64_t); }
inline uint64_t record_offset(uint64_t record, size_t bytes_a_record) {
  return kHeaderBytes + record * bytes_a_record;
}

inline uint32_t checksum_to_weights(const std::byte* record, const RecordShape& shape) {
  return crc32c(record + sizeof(uint32_t), shape.weights_end - sizeof(uint32_t));
}
inline uint32_t checksum_of_slots(const std::byte* record, const RecordShape& shape) {
  return crc32c(record + shape.weights_end, shape.bytes - shape.weights_end);
}
// True if the record is what was sealed, at least to the end of its weights.
inline bool is_whole_to_weights(const std::byte* record, const RecordShape& shape) {
  uint32_t checksum;
  std::memcpy(&checksum, record, sizeof checksum);
  return checksum == checksum_to_weights(record, shape);
}
inline bool is_whole(const std::byte* record, const RecordShape& shape) {
  uint32_t checksum;
  std::memcpy(&checksum, record + offsetof(RecordHeader, slots_checksum), sizeof checksum);
  return checksum == checksum_of_slots(record, shape) && is_whole_to_weights(record, shape);
}
inline void seal_record(std::byte* record, const RecordShape& shape) {
  const uint32_t of_slots = checksum_of_slots(record, shape);
  std::memcpy(record + offsetof(RecordHeader, slots_checksum), &of_slots, sizeof of_slots);
  const uint32_t checksum = checksum_to_weights(record, shape);
  std::memcpy(record, &checksum, sizeof checksum);
}
inline RecordHeader header_of(const std::byte* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  return header;
}

inline uint32_t checksum_of_header(const FileHeader& header) {
  return crc32c(&header, offsetof(FileHeader, checksum));
}

inline uint64_t hash_of_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

constexpr uint64_t round_down_to_block(uint64_t bytes) { return bytes / kBlockBytes * kBlockBytes; }
constexpr uint64_t round_up_to_block(uint64_t bytes) { return round_down_to_block(bytes + kBlockBytes - 1); }

}  // namespace embstore::ssd_hash
