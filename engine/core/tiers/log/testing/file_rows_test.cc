// Rows come back as they were written: checksums, I/O schemes, batches, sizes.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "file_table.h"
#include "platform/crc32c.h"

namespace embstore::log::testing {
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

void rows_of_262145_keys_read_back(IoScheme scheme, bool direct) {
  // The first number above 2^18; each row is its key + 3.
  constexpr int64_t kRows = 262145;
  const RowLayout layout(4, 0);
  const TemporaryDirectory directory;
  SsdHashOptions options;
  options.io_scheme = scheme;
  options.direct = direct;
  options.file_bytes = 4 << 20;
  SsdHashTier tier(table_of(layout), directory / "rows", options);
  RowBatch rows(layout);
  std::vector<Slot> slots(kRows);
  rows.resize(kRows);
  for (int64_t key = 0; key < kRows; ++key) {
    rows.header(key) = {.key = key, .frequency = 1, .version = 0, .served = 1, .stamp = 1};
    for (int d = 0; d < 4; ++d) rows.row(key)[d] = static_cast<float>(key + 3);
  }
  tier.write(rows, slots);
  std::vector<Place> places(kRows);
  // Scattered, so that most are read on their own; then in order.
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t key = i * 104729 % kRows;
    places[i] = {key, slots[key]};
  }
  for (int round = 0; round < 2; ++round) {
    tier.read(places, rows);
    for (int64_t i = 0; i < kRows; ++i) {
      check(rows.header(i).key == places[i].key, "a row of another key");
      for (int d = 0; d < 4; ++d) {
        check(rows.row(i)[d] == static_cast<float>(places[i].key + 3), "a row isn't its key + 3");
      }
    }
    std::sort(places.begin(), places.end(), [](auto a, auto b) { return a.slot < b.slot; });
  }
  const SsdHashStats stats = tier.detailed_stats();
  const std::string expected =
      scheme == IoScheme::kAuto
          ? (resolve_auto_io_scheme().scheme == IoScheme::kIoUring ? "io_uring" : "pread")
          : (scheme == IoScheme::kPread ? "pread" : "io_uring");
  check(stats.io_scheme == expected, "another I/O scheme");
  check(stats.direct == direct, "another mode");
  check((stats.mapped_rows > 0) == (scheme == IoScheme::kAuto), "rows came another way");
}

TEST(rows_read_back_by_what_is_quickest) { rows_of_262145_keys_read_back(IoScheme::kAuto, false); }
TEST(rows_read_back_by_pread) { rows_of_262145_keys_read_back(IoScheme::kPread, false); }
TEST(rows_read_back_by_pread_direct) { rows_of_262145_keys_read_back(IoScheme::kPread, true); }
TEST(rows_read_back_by_io_uring) { rows_of_262145_keys_read_back(IoScheme::kIoUring, false); }
TEST(rows_read_back_by_io_uring_direct) { rows_of_262145_keys_read_back(IoScheme::kIoUring, true); }

TEST(rows_of_every_size_read_back) {
  for (const auto& [dim, slots] : {std::pair{1, 0}, {3, 1}, {16, 1}, {64, 2}, {1000, 0}, {20000, 1}}) {
    for (const bool direct : {false, true}) {
      const TemporaryDirectory directory;
      UnwaitingCalls calls;
      SsdHashOptions options = small_files_for_checkpoints();
      options.file_calls = &calls;
      options.direct = direct;
      TestTable table(directory.path(), options, table_of(RowLayout(dim, slots)));
      std::vector<int64_t> keys;
      for (int64_t key = -20; key < 20; ++key) keys.push_back(key * key * key);
      for (int64_t version = 0; version < 8; ++version) {
        for (const int64_t& key : keys) {
          table.erase({&key, 1});
          table.write({&key, 1}, version);
        }
        table.check_rows();
        if (version > 5) table.checkpoint();
      }
      table.check_space();
      table.restore(1);
      table.check_rows();
    }
  }
}

TEST(rows_in_the_buffer_are_readable_at_once) {
  const TemporaryDirectory directory;
  TestTable table(directory.path());
  table.write(std::vector<int64_t>{1, -1, INT64_MIN, INT64_MAX, 0}, 7);
  table.check_rows();
  check(table.tier->detailed_stats().read_requests == 0, "rows in the buffer were read from a file");
}

TEST(neighbours_are_read_at_once) {
  const TemporaryDirectory directory;
  SsdHashOptions options;
  options.io_scheme = IoScheme::kPread;
  TestTable table(directory.path(), options);
  table.write(0, 400, 1);
  table.write(1000, 20000, 1);  // so that the first leave the buffer
  std::vector<Place> places;
  for (const int64_t key : keys_from(0, 400)) places.push_back({key, table.index.find(key)->slot});
  RowBatch rows(kLayout);
  table.tier->read(places, rows);
  for (size_t i = 0; i < places.size(); ++i) checked_version(rows, i, places[i].key);
  const uint64_t requests = table.tier->detailed_stats().read_requests;
  check(requests >= 1 && requests <= 2, "400 neighbours took " + std::to_string(requests) + " reads");
}

TEST(rows_of_another_layout_are_refused) {
  const TemporaryDirectory directory;
  SsdHashTier tier(table_of(RowLayout(8, 0)), directory / "rows");
  RowBatch rows(RowLayout(16, 0));
  rows.resize(1);
  std::vector<Slot> slots(1);
  check_throws(ErrorKind::kInvalidArgument, "rows of 16 floats", [&] { tier.write(rows, slots); });
}

}  // namespace
}  // namespace embstore::log::testing
