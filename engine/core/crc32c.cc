#include "crc32c.h"

#include <array>
#include <cstring>

namespace embstore {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

uint32_t extend_by_table(uint32_t crc, const unsigned char* data, size_t size) {
  for (size_t i = 0; i < size; ++i) crc = kTable[(crc ^ data[i]) & 0xff] ^ (crc >> 8);
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t extend_by_instruction(uint32_t crc,
                                                                 const unsigned char* data,
                                                                 size_t size) {
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size, ++data) crc = __builtin_ia32_crc32qi(crc, *data);
  return crc;
}

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t crc) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  const auto* bytes = static_cast<const unsigned char*>(data);
  return ~(has_instruction ? extend_by_instruction(~crc, bytes, size)
                           : extend_by_table(~crc, bytes, size));
}

}  // namespace embstore
