#include "tiers/leveldb/leveldb_record.h"

#include <bit>
#include <cstring>

#include "platform/crc32c.h"

namespace embstore {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");
static_assert(sizeof(LevelDbFormatRecord) == 32);

constexpr size_t kHeaderOffset = sizeof(uint64_t);
constexpr size_t kFloatsOffset = kHeaderOffset + sizeof(RowHeader);

}  // namespace

LevelDbFormatRecord LevelDbFormatRecord::of(const RowLayout& layout) {
  LevelDbFormatRecord record{.magic = kMagic,
                             .version = kVersion,
                             .dim = static_cast<uint32_t>(layout.dim()),
                             .slot_count = static_cast<uint32_t>(layout.slot_count()),
                             .reserved = {},
                             .crc = 0};
  record.crc = crc32c(&record, offsetof(LevelDbFormatRecord, crc));
  return record;
}

std::string_view LevelDbFormatRecord::bytes() const {
  return {reinterpret_cast<const char*>(this), sizeof(*this)};
}

LevelDbRowKey leveldb_row_key(uint32_t table, const Place& place) {
  const uint32_t number = __builtin_bswap32(table);
  const uint64_t key = __builtin_bswap64(static_cast<uint64_t>(place.key) ^ (uint64_t{1} << 63));
  const uint32_t slot = __builtin_bswap32(place.slot);
  LevelDbRowKey record;
  record[0] = 'r';
  std::memcpy(record.data() + 1, &number, sizeof(number));
  std::memcpy(record.data() + 1 + sizeof(number), &key, sizeof(key));
  std::memcpy(record.data() + 1 + sizeof(number) + sizeof(key), &slot, sizeof(slot));
  return record;
}

LevelDbRowValue::LevelDbRowValue(const RowLayout& layout)
    : row_bytes_(layout.row_bytes()), bytes_(kFloatsOffset + row_bytes_ + sizeof(uint32_t)) {}

void LevelDbRowValue::encode(uint64_t sequence, const RowHeader& header, const float* floats,
                             char* value) const {
  std::memcpy(value, &sequence, sizeof(sequence));
  std::memcpy(value + kHeaderOffset, &header, sizeof(header));
  std::memcpy(value + kFloatsOffset, floats, row_bytes_);
  const size_t crc_offset = bytes_ - sizeof(uint32_t);
  const uint32_t crc = crc32c(value, crc_offset);
  std::memcpy(value + crc_offset, &crc, sizeof(crc));
}

bool LevelDbRowValue::decode(std::string_view value, uint64_t& sequence, RowHeader& header,
                             float* floats) const {
  if (value.size() != bytes_) return false;
  std::memcpy(&sequence, value.data(), sizeof(sequence));
  std::memcpy(&header, value.data() + kHeaderOffset, sizeof(header));
  std::memcpy(floats, value.data() + kFloatsOffset, row_bytes_);
  const size_t crc_offset = bytes_ - sizeof(uint32_t);
  uint32_t crc = 0;
  std::memcpy(&crc, value.data() + crc_offset, sizeof(crc));
  return crc == crc32c(value.data(), crc_offset);
}

}  // namespace embstore
