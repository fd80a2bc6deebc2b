// The records of a LevelDB tier. FORMAT.md describes their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"

namespace embstore {

// The record that says what a database holds.
struct LevelDbFormatRecord {
  static constexpr std::string_view kKey = "format";
  static constexpr std::array<char, 8> kMagic = {'E', 'M', 'B', 'S', 'T', 'L', 'D', 'B'};
  static constexpr uint32_t kVersion = 2;
  // Written by earlier versions of the engine below a durable pool: the rows belong to checkpoints.
  static constexpr uint32_t kCheckpointsVersion = 3;

  std::array<char, 8> magic;
  uint32_t version;
  uint32_t dim;
  uint32_t slot_count;
  uint32_t reserved[2];
  uint32_t crc;

  static LevelDbFormatRecord of(const RowLayout& layout);
  std::string_view bytes() const;
};

// The key of a row's record: 'r', the number of the table in the database, the row's key with its sign bit
// flipped, the slot. The numbers are big-endian, so that LevelDB's order is the order of the keys.
using LevelDbRowKey = std::array<char, 1 + sizeof(uint32_t) + sizeof(int64_t) + sizeof(Slot)>;
LevelDbRowKey leveldb_row_key(uint32_t table, const Place& place);

// The value of a row's record: the sequence number of its write, the header, the floats, the checksum.
class LevelDbRowValue {
 public:
  explicit LevelDbRowValue(const RowLayout& layout);

  size_t bytes() const { return bytes_; }
  // Writes bytes() bytes to `value`.
  void encode(uint64_t sequence, const RowHeader& header, const float* floats, char* value) const;
  // Returns whether the value is whole; if not, header and floats are unspecified.
  bool decode(std::string_view value, uint64_t& sequence, RowHeader& header, float* floats) const;

 private:
  const size_t row_bytes_;
  const size_t bytes_;
};

}  // namespace embstore
