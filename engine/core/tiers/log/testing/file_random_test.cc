// Compares random operations, on files so small that compaction never ends, with a plain map.
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>

#include "table.h"

namespace embstore::log::testing {
namespace {

// Returns how many files were compacted.
uint64_t run(uint64_t seed, IoScheme scheme, bool direct, CompactionMode mode) {
  constexpr int kSteps = 400;
  tested_case() = "seed " + std::to_string(seed);
  std::mt19937_64 random(seed);
  const RowLayout layout(1 + static_cast<int>(random() % 40), static_cast<int>(random() % 3));
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files();
  options.io_scheme = scheme;
  options.direct = direct;
  options.compaction = mode;
  options.file_bytes = (16 << 10) << random() % 4;
  options.buffer_bytes = (128 << 10) << random() % 3;
  const int64_t key_count = 50 + static_cast<int64_t>(random() % 6000);
  uint64_t compacted = 0;
  {
    FileTable table(directory.path(), options, table_of(layout));
    for (int step = 0; step < kSteps; ++step) {
      // Long phases of mostly writing and mostly erasing, so that the tier fills and empties.
      const uint64_t erasing = step / 40 % 3 == 2 ? 70 : 25;
      std::vector<int64_t> keys(random() % 600);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % key_count) - key_count / 2;
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      if (random() % 100 < erasing) {
        table.erase(keys);
        table.check_space();
      } else if (random() % 2 == 0) {
        if (random() % 2 == 0) table.erase(keys);
        table.write(keys, step);
        if (mode == CompactionMode::kWritingThread) {
          table.tier->compact();
          table.check_space();
        }
      } else {
        table.check_rows();
      }
    }
    table.check_space();
    table.check_rows();
    compacted = table.tier->detailed_stats().compacted_files;
  }
  check(!std::filesystem::exists(directory / "rows"), "files stayed");
  tested_case().clear();
  return compacted;
}

void many(IoScheme scheme, bool direct, CompactionMode mode, uint64_t first_seed) {
  const uint64_t seeds = scaled_count(direct ? 5 : 20);  // with O_DIRECT every write waits for the medium
  uint64_t compacted = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    compacted += run(seed, scheme, direct, mode);
  }
  check(compacted > 50 * seeds, "hardly anything was compacted: " + std::to_string(compacted));
}

TEST(random_operations_by_what_is_quickest) {
  many(IoScheme::kAuto, false, CompactionMode::kWritingThread, 400);
}
TEST(random_operations_by_pread) { many(IoScheme::kPread, false, CompactionMode::kWritingThread, 1); }
TEST(random_operations_by_io_uring) { many(IoScheme::kIoUring, false, CompactionMode::kWritingThread, 100); }
TEST(random_operations_direct) { many(IoScheme::kIoUring, true, CompactionMode::kWritingThread, 200); }
TEST(random_operations_with_a_compaction_thread) {
  many(IoScheme::kAuto, false, CompactionMode::kOwnThread, 300);
}

}  // namespace
}  // namespace embstore::log::testing
