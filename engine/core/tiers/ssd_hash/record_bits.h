// A set of records of one file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace embstore::ssd_hash {

using RecordBits = std::vector<uint64_t>;  // record r is bit r % 64 of word r / 64

inline constexpr size_t bit_words(uint32_t records) { return (size_t{records} + 63) / 64; }
inline bool has_record(const RecordBits& bits, uint32_t record) {
  return record / 64 < bits.size() && (bits[record / 64] >> (record % 64) & 1) != 0;
}
inline uint32_t count_records(const RecordBits& bits) {
  uint32_t records = 0;
  for (const uint64_t word : bits) records += static_cast<uint32_t>(std::popcount(word));
  return records;
}
// One more than the last record of the set; 0 of an empty one.
inline uint64_t end_of_records(const RecordBits& bits) {
  for (size_t word = bits.size(); word > 0; --word) {
    if (bits[word - 1] != 0) return word * 64 - static_cast<size_t>(std::countl_zero(bits[word - 1]));
  }
  return 0;
}

}  // namespace embstore::ssd_hash
