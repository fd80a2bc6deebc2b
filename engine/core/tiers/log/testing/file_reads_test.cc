// Tests of reading rows in files: I/O schemes, neighbours, the buffer.
#include <algorithm>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

void rows_of_262145_keys_read_back(IoScheme scheme, bool direct) {
  // The first number above 2^18; each row has the value key + 3.
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
  // First scattered, so that most are read one by one; then in order.
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

TEST(rows_in_the_buffer_are_readable_at_once) {
  const TemporaryDirectory directory;
  FileTable table(directory.path());
  table.write(std::vector<int64_t>{1, -1, INT64_MIN, INT64_MAX, 0}, 7);
  table.check_rows();
  check(table.tier->detailed_stats().read_requests == 0, "rows in the buffer were read from a file");
}

TEST(neighbours_are_read_at_once) {
  const TemporaryDirectory directory;
  SsdHashOptions options;
  options.io_scheme = IoScheme::kPread;
  FileTable table(directory.path(), options);
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
