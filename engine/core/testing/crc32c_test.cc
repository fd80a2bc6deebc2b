// CRC-32C: the published values, by the processor's instruction and by the table.
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

}  // namespace
}  // namespace embstore
