// The bytes of a durable pool. engine/FORMAT.md (section POOL) says the same in words, and why what is written in this
// order survives a power cut; whoever changes one changes the other, and the version.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "platform/crc32c.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"

namespace embstore::pool {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

inline constexpr uint32_t kFormatVersion = 1;
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHeaderBytes = kPageBytes;
// What the medium writes at once: what shares such a line may be torn with it.
inline constexpr size_t kMediaLineBytes = 256;

using Uuid = std::array<uint8_t, 16>;

// --- NAME.pool: this header, then a record for each slot.
inline constexpr char kRowsMagic[8] = {'E', 'S', 'P', 'M', 'R', 'O', 'W', 'S'};

struct RowsHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;
  Uuid uuid;  // drawn when the pool was made; both files have it
  uint32_t reserved;
  uint32_t checksum;  // CRC-32C of the bytes before it
};
static_assert(sizeof(RowsHeader) == 40);

struct RecordHeader {
  int64_t key;
  uint64_t frequency : 48;
  uint64_t save_span : 16;
  int64_t version;
  uint64_t served;  // this and the next: as the row was ranked when it came
  uint64_t stamp;
  uint64_t epoch;  // no checkpoint of a smaller number has this record
  uint32_t slot;
  uint32_t weights_checksum;  // CRC-32C of the first block of floats
  uint32_t slots_checksum;    // CRC-32C of the others
  uint32_t checksum;          // CRC-32C of the bytes before it

  static RecordHeader of(const RowHeader& row, uint64_t first_checkpoint, Slot at) {
    return {.key = row.key,
            .frequency = row.frequency & RowMeta::kFrequencyBits,
            .save_span = row.save_span & 0xffff,
            .version = row.version,
            .served = row.served,
            .stamp = row.stamp,
            .epoch = first_checkpoint,
            .slot = at,
            .weights_checksum = 0,
            .slots_checksum = 0,
            .checksum = 0};
  }
  RowHeader row() const { return {key, frequency, version, served, stamp, save_span}; }
  bool is_whole() const { return checksum == computed_checksum(); }
  uint32_t computed_checksum() const { return crc32c(this, offsetof(RecordHeader, checksum)); }
};
static_assert(sizeof(RecordHeader) == 64);

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where records lie. None shares a media line with another.
struct RecordShape {
  explicit RecordShape(const RowLayout& layout)
      : weights_bytes(layout.block_floats() * sizeof(float)),
        row_bytes(layout.row_bytes()),
        stride(round_up(sizeof(RecordHeader) + layout.row_bytes(), kMediaLineBytes)) {}

  size_t offset(Slot slot) const { return kHeaderBytes + slot * stride; }
  size_t file_bytes(uint64_t slots) const { return round_up(kHeaderBytes + slots * stride, kPageBytes); }

  // The header with the checksums of these floats.
  void seal(RecordHeader& header, const float* floats) const {
    header.weights_checksum = checksum_of_weights(floats);
    header.slots_checksum = checksum_of_slots(floats);
    header.checksum = header.computed_checksum();
  }
  uint32_t checksum_of_weights(const float* floats) const { return crc32c(floats, weights_bytes); }
  uint32_t checksum_of_slots(const float* floats) const {
    return crc32c(reinterpret_cast<const std::byte*>(floats) + weights_bytes, row_bytes - weights_bytes);
  }

  size_t weights_bytes;
  size_t row_bytes;
  size_t stride;
};

// --- NAME.checkpoints: this header, a table of entries, and a bitmap region for each.
inline constexpr char kCheckpointsMagic[8] = {'E', 'S', 'P', 'M', 'C', 'K', 'P', 'T'};

struct CheckpointsHeader {
  char magic[8];
  uint32_t format_version;
  uint32_t header_bytes;
  Uuid uuid;
  uint64_t slots;  // that the pool has
  uint32_t dim;
  uint32_t slot_count;  // optimizer slots
  uint32_t row_bytes;   // of a row's floats, padding included
  uint32_t stride;      // from one record to the next
  uint32_t entries;
  uint32_t table_name_bytes;
  uint32_t optimizer_bytes;
  char table_name[1024];  // filled up with zeros
  char optimizer[256];    // its name, which says what the slots are; filled up with zeros
  uint32_t checksum;      // CRC-32C of the bytes before it
};
static_assert(sizeof(CheckpointsHeader) == 1352);

// One more than there may be checkpoints: so the entry with the greatest number ever given needn't be written over.
inline constexpr size_t kEntries = 17;

// A media line. Everything but `number` is written while that is 0; then 8 bytes make the checkpoint, or end it.
struct Entry {
  uint64_t number;  // 0: there's no such checkpoint
  uint64_t given;   // the number, whether or not the checkpoint is there still
  std::array<uint8_t, 16> id;
  uint64_t rows;             // bits that are set
  uint32_t bitmap_checksum;  // CRC-32C of the region's words
  uint32_t checksum;         // CRC-32C of the bytes before it, without `number`
  uint8_t reserved[208];     // 0

  uint32_t computed_checksum() const {
    return crc32c(&given, offsetof(Entry, checksum) - offsetof(Entry, given));
  }
  bool is_whole() const { return checksum == computed_checksum(); }
};
static_assert(sizeof(Entry) == kMediaLineBytes);

// Bit s mod 64 of word s / 64 is slot s.
constexpr size_t bitmap_words(uint64_t slots) { return (slots + 63) / 64; }

struct CheckpointsShape {
  explicit CheckpointsShape(uint64_t slots)
      : bitmap_bytes(bitmap_words(slots) * sizeof(uint64_t)),
        region_bytes(round_up(bitmap_bytes, kPageBytes)) {}

  static constexpr size_t kTableOffset = kHeaderBytes;
  static constexpr size_t kTableBytes = (kEntries * sizeof(Entry) + kPageBytes - 1) / kPageBytes * kPageBytes;

  static size_t entry_offset(size_t entry) { return kTableOffset + entry * sizeof(Entry); }
  size_t region_offset(size_t entry) const { return kTableOffset + kTableBytes + entry * region_bytes; }
  size_t file_bytes() const { return region_offset(kEntries); }

  size_t bitmap_bytes;
  size_t region_bytes;
};

template <class Header>
uint32_t checksum_of_header(const Header& header) {
  return crc32c(&header, offsetof(Header, checksum));
}

}  // namespace embstore::pool
