#include "platform/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace embstore {
namespace {

// tables[k][b] is the remainder of byte b followed by k zero bytes: with them, eight bytes take one step.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82f63b78U : 0U);
    }
    tables[0][byte] = remainder;
  }
  for (size_t zeros = 1; zeros < 8; ++zeros) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[zeros - 1][byte];
      tables[zeros][byte] = (shorter >> 8) ^ tables[0][shorter & 0xff];
    }
  }
  return tables;
}

constexpr std::array<std::array<uint32_t, 256>, 8> kTables = make_tables();

#if defined(__x86_64__)
// An instruction takes three cycles, and three may be in flight: so long data is processed as three lanes at
// a time.
constexpr size_t kLaneBytes = 4096;  // a power of two

// tables[k][b] is what the state b << 8k becomes after a lane of zeros. The state after a lane is the
// exclusive or of that and of what the lane alone gives.
constexpr std::array<std::array<uint32_t, 256>, 4> make_lane_tables() {
  // bits[i]: the state that bit i becomes after a number of zero bytes, one at first.
  std::array<uint32_t, 32> bits{};
  for (size_t bit = 0; bit < 32; ++bit) {
    const uint32_t state = uint32_t{1} << bit;
    bits[bit] = (state >> 8) ^ kTables[0][state & 0xff];
  }
  for (size_t bytes = 1; bytes < kLaneBytes; bytes *= 2) {
    std::array<uint32_t, 32> after_twice_as_many{};
    for (size_t bit = 0; bit < 32; ++bit) {
      for (size_t b = 0; b < 32; ++b) {
        if ((bits[bit] >> b & 1) != 0) after_twice_as_many[bit] ^= bits[b];
      }
    }
    bits = after_twice_as_many;
  }
  std::array<std::array<uint32_t, 256>, 4> tables{};
  for (size_t bit = 0; bit < 32; ++bit) {
    for (size_t byte = 0; byte < 256; ++byte) {
      if ((byte >> bit % 8 & 1) != 0) tables[bit / 8][byte] ^= bits[bit];
    }
  }
  return tables;
}

constexpr std::array<std::array<uint32_t, 256>, 4> kLaneTables = make_lane_tables();

uint32_t after_lane_of_zeros(uint64_t state) {
  return kLaneTables[0][state & 0xff] ^ kLaneTables[1][state >> 8 & 0xff] ^
         kLaneTables[2][state >> 16 & 0xff] ^ kLaneTables[3][state >> 24 & 0xff];
}

uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(const void* data, size_t size,
                                                                 uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; size >= 3 * kLaneBytes; size -= 3 * kLaneBytes, at += 3 * kLaneBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      state = _mm_crc32_u64(state, word_at(at + i));
      second = _mm_crc32_u64(second, word_at(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, word_at(at + 2 * kLaneBytes + i));
    }
    state = after_lane_of_zeros(after_lane_of_zeros(state) ^ second) ^ third;
  }
  for (; size >= 8; size -= 8, at += 8) state = _mm_crc32_u64(state, word_at(at));
  auto rest = static_cast<uint32_t>(state);
  for (; size > 0; --size, ++at) rest = _mm_crc32_u8(rest, *at);
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_by_table(const void* data, size_t size, uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint32_t low;
    std::memcpy(&low, at, sizeof low);
    low ^= state;
    state = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
            kTables[4][low >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^
            kTables[0][at[7]];
  }
  for (; size > 0; --size, ++at) state = (state >> 8) ^ kTables[0][(state ^ *at) & 0xff];
  return ~state;
}

uint32_t crc32c(const void* data, size_t size, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_by_instruction(data, size, crc);
#endif
  return crc32c_by_table(data, size, crc);
}

}  // namespace embstore
