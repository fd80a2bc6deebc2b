// One row on a durable medium: a header of 64 bytes, then the row's floats. engine/FORMAT.md, section LOG,
// describes the same; a change to one must change the other, and the version.
//
// A record has three checksums, of the header, of the weights, and of the optimizer's slots, so that a reader
// checks only what it reads.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "platform/crc32c.h"
#include "platform/round_up.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::log {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

inline constexpr size_t kHeaderBytes = medium::kBlockBytes;  // at a file's start; its records follow
// The unit in which persistent memory is written: all bytes that share such a line may be torn together.
inline constexpr size_t kMediaLineBytes = 256;

struct RecordHeader {
  int64_t key;
  uint64_t frequency : 48;
  uint64_t save_span : 16;
  int64_t version;
  uint64_t served;  // this and `stamp`: the row's rank when the record was written
  uint64_t stamp;
  uint64_t epoch;             // no checkpoint with a smaller number has this record
  uint32_t record;            // number of the record in its extent
  uint32_t weights_checksum;  // CRC-32C of the first block of floats
  uint32_t slots_checksum;    // CRC-32C of the other blocks
  uint32_t checksum;          // CRC-32C of the bytes before it

  static RecordHeader of(const RowHeader& row, uint64_t epoch, uint32_t record) {
    return {.key = row.key,
            .frequency = row.frequency & RowMeta::kFrequencyBits,
            .save_span = row.save_span & 0xffff,
            .version = row.version,
            .served = row.served,
            .stamp = row.stamp,
            .epoch = epoch,
            .record = record,
            .weights_checksum = 0,
            .slots_checksum = 0,
            .checksum = 0};
  }
  RowHeader row() const { return {key, frequency, version, served, stamp, save_span}; }
  bool is_whole() const { return checksum == computed_checksum(); }
  uint32_t computed_checksum() const { return crc32c(this, offsetof(RecordHeader, checksum)); }
};
static_assert(sizeof(RecordHeader) == 64);

// The length of a table's records, and their offsets in a file.
struct RecordShape {
  // stride_unit: each record begins at a multiple of this many bytes after the first record.
  RecordShape(const RowLayout& layout, size_t stride_unit)
      : weights_bytes(layout.block_floats() * sizeof(float)),
        row_bytes(layout.row_bytes()),
        stride(round_up(sizeof(RecordHeader) + layout.row_bytes(), stride_unit)) {}

  uint64_t offset(uint64_t record) const { return kHeaderBytes + record * stride; }
  uint64_t file_bytes(uint64_t records) const { return medium::round_up_to_block(offset(records)); }

  uint32_t checksum_of_weights(const void* floats) const { return crc32c(floats, weights_bytes); }
  uint32_t checksum_of_slots(const void* floats) const {
    return crc32c(static_cast<const std::byte*>(floats) + weights_bytes, row_bytes - weights_bytes);
  }
  // Sets the header's checksums of these floats, and its own.
  void seal(RecordHeader& header, const void* floats) const {
    header.weights_checksum = checksum_of_weights(floats);
    header.slots_checksum = checksum_of_slots(floats);
    header.checksum = header.computed_checksum();
  }

  size_t weights_bytes;  // the first block of floats
  size_t row_bytes;      // all blocks
  size_t stride;         // from one record to the next
};

inline RecordHeader header_of(const std::byte* record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  return header;
}

// Returns what is wrong with a header that was read as that of record `record` of its extent, or null.
inline const char* fault_of_header(const RecordHeader& header, uint32_t record) {
  if (!header.is_whole()) return "its header's checksum is wrong";
  if (header.record != record) return "it's the record of another place";
  return nullptr;
}
// The same for a record that checkpoint `number` should have.
inline const char* fault_of_header(const RecordHeader& header, uint32_t record, uint64_t number) {
  if (const char* const fault = fault_of_header(header, record)) return fault;
  return header.epoch > number ? "it's of a later checkpoint" : nullptr;
}

// Returns what is wrong with the record, or null. Checks all floats if `all_floats`, else the weights only.
inline const char* fault_of(const RecordHeader& header, uint32_t record, const void* floats, bool all_floats,
                            const RecordShape& shape) {
  if (const char* const fault = fault_of_header(header, record)) return fault;
  if (header.weights_checksum != shape.checksum_of_weights(floats)) return "its weights' checksum is wrong";
  if (all_floats && header.slots_checksum != shape.checksum_of_slots(floats)) {
    return "the checksum of its optimizer's slots is wrong";
  }
  return nullptr;
}

}  // namespace embstore::log
