// Tests that CRC-32C has the published values, by the processor's instruction and by the table.
#include "platform/crc32c.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "testing/tests.h"

namespace embstore {
namespace {

TEST(crc32c_gives_the_published_values) {
  // RFC 3720, appendix B.4, and the usual check value of the algorithm.
  std::vector<unsigned char> bytes(32, 0);
  const auto both = [&](uint32_t expected, const void* data, size_t size, const char* what) {
    check(crc32c(data, size) == expected, std::string("crc32c of ") + what);
    check(crc32c_by_table(data, size) == expected, std::string("crc32c_by_table of ") + what);
  };
  both(0x8a9136aa, bytes.data(), 32, "zeros");
  std::fill(bytes.begin(), bytes.end(), 0xff);
  both(0x62a8ab43, bytes.data(), 32, "ones");
  std::iota(bytes.begin(), bytes.end(), 0);
  both(0x46dd794e, bytes.data(), 32, "ascending bytes");
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(31 - i);
  both(0x113fdb5c, bytes.data(), 32, "descending bytes");
  const unsigned char read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                                          0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                          0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  both(0xd9963a56, read_command, 48, "an iSCSI read command");
  both(0xe3069283, "123456789", 9, "123456789");
  both(0, "", 0, "nothing");
}

TEST(both_checksums_agree_on_every_length) {
  std::vector<unsigned char> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i + 7 * i);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t size = 0; size + from < bytes.size(); ++size) {
      check(crc32c(&bytes[from], size) == crc32c_by_table(&bytes[from], size), "the checksums differ");
    }
  }
}

TEST(both_checksums_agree_on_long_data) {
  std::vector<unsigned char> bytes(100'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i % 251 + (i >> 9));
  for (const size_t lanes : {1u, 2u, 3u, 6u, 7u, 9u, 21u}) {
    for (size_t size = lanes * 4096 - 9; size < lanes * 4096 + 10; ++size) {
      const unsigned char* const from = &bytes[size % 7];
      const auto before = static_cast<uint32_t>(size * 2'654'435'761u);
      check(crc32c(from, size, before) == crc32c_by_table(from, size, before), "the checksums differ");
      const uint32_t in_parts = crc32c(from + size / 3, size - size / 3, crc32c(from, size / 3));
      check(in_parts == crc32c(from, size), "the checksum of two parts differs from that of both");
    }
  }
}

}  // namespace
}  // namespace embstore
