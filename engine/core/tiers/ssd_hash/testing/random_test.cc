// Operations at random, in files so small that compaction never ends, against a plain map.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "testing.h"

namespace embstore::ssd_hash::testing {
namespace {

// The bound that the tier promises, with what the directory really holds.
void check_space(const SsdHashTier& tier, const std::string& path, uint64_t buffer_bytes) {
  SsdHashStats stats = tier.detailed_stats();
  uint64_t bytes = bytes_in(path);
  // A thread of the tier's own may be at it between the two.
  for (int again = 0; again < 200 && bytes != stats.file_bytes; ++again) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = tier.detailed_stats();
    bytes = bytes_in(path);
  }
  check(bytes == stats.file_bytes, "the files take " + std::to_string(bytes) + " bytes, the tier says " +
                                       std::to_string(stats.file_bytes));
  const uint64_t bound = 2 * stats.live_rows * stats.record_bytes + buffer_bytes;
  check(bytes <= bound,
        "the files take " + std::to_string(bytes) + " bytes, more than " + std::to_string(bound));
}

void run(uint64_t seed, IoScheme scheme, bool direct, CompactionMode mode, int steps) {
  std::mt19937_64 random(seed);
  const RowLayout layout(1 + static_cast<int>(random() % 40), static_cast<int>(random() % 3));
  const TemporaryDirectory directory;
  SsdHashOptions options = small_files();
  options.io_scheme = scheme;
  options.direct = direct;
  options.compaction = mode;
  options.file_bytes = (16 << 10) << random() % 4;
  options.buffer_bytes = (128 << 10) << random() % 3;
  const int64_t keys = 50 + static_cast<int64_t>(random() % 6000);
  {
    PlainIndex index;  // outlives the tier's own thread
    SsdHashTier tier("var", layout, directory / "rows", options);
    tier.start_compaction(index);
    for (int step = 0; step < steps; ++step) {
      // Long phases of mostly writing and mostly erasing, so that the tier fills and empties.
      const uint64_t erasing = step / 40 % 3 == 2 ? 70 : 25;
      std::vector<int64_t> batch(random() % 600);
      for (int64_t& key : batch) key = static_cast<int64_t>(random() % keys) - keys / 2;
      if (random() % 100 < erasing) {
        std::vector<Place> places;
        for (const int64_t key : batch) {
          if (const auto old = index.take(key)) places.push_back({key, old->slot});
        }
        tier.erase(places);
        if (random() % 2 == 0) {
          std::vector<int64_t> gone;
          for (const Place& place : places) gone.push_back(place.key);
          tier.bury(gone);
        }
        tier.drain();
        check_space(tier, directory / "rows", options.buffer_bytes);
      } else if (random() % 2 == 0) {
        std::sort(batch.begin(), batch.end());
        batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
        std::vector<Place> places;
        for (const int64_t key : batch) {
          if (const auto old = index.take(key)) places.push_back({key, old->slot});
        }
        tier.erase(places);
        write_rows(tier, index, layout, batch, step);
        if (mode == CompactionMode::kWritingThread) {
          tier.compact();
          check_space(tier, directory / "rows", options.buffer_bytes);
        }
      } else {
        RowBatch rows(layout);
        std::vector<Place> places;
        std::vector<int64_t> versions;
        for (const int64_t key : batch) {
          const auto entry = index.find(key);
          if (!entry) continue;
          places.push_back({key, entry->slot});
          versions.push_back(entry->version);
        }
        tier.read(places, rows);
        for (size_t i = 0; i < places.size(); ++i) {
          const auto now = index.find(places[i].key);
          if (now->slot != places[i].slot) continue;  // moved meanwhile: what was read says nothing
          check(checked_version(rows, i, places[i].key) == versions[i], "a row has another version");
        }
      }
      if (random() % 64 == 0) tier.flush();
    }
    tier.drain();
    check_all(tier, index, layout);
    if (steps >= 200) check(tier.detailed_stats().compacted_files > 0, "nothing was compacted");
    check(tier.detailed_stats().compaction_error.empty(), tier.detailed_stats().compaction_error);
  }
  check(!std::filesystem::exists(directory / "rows"), "files stayed");
}

void many(IoScheme scheme, bool direct, CompactionMode mode, uint64_t first_seed) {
  const uint64_t seeds = scenes(direct ? 8 : 25);  // every write waits for the medium
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    try {
      run(seed, scheme, direct, mode, 400);
    } catch (const std::exception& error) {
      fail("seed " + std::to_string(seed) + ": " + error.what());
    }
  }
}

void random_operations_by_what_is_quickest() {
  many(IoScheme::kAuto, false, CompactionMode::kWritingThread, 400);
}
void random_operations_by_pread() { many(IoScheme::kPread, false, CompactionMode::kWritingThread, 1); }
void random_operations_by_io_uring() { many(IoScheme::kIoUring, false, CompactionMode::kWritingThread, 100); }
void random_operations_direct() { many(IoScheme::kIoUring, true, CompactionMode::kWritingThread, 200); }
void random_operations_with_a_compaction_thread() {
  many(IoScheme::kAuto, false, CompactionMode::kOwnThread, 300);
}

constexpr Test kTests[] = {
    {"random_operations_by_what_is_quickest", random_operations_by_what_is_quickest},
    {"random_operations_by_pread", random_operations_by_pread},
    {"random_operations_by_io_uring", random_operations_by_io_uring},
    {"random_operations_direct", random_operations_direct},
    {"random_operations_with_a_compaction_thread", random_operations_with_a_compaction_thread},
};

}  // namespace

std::span<const Test> random_tests() { return kTests; }

}  // namespace embstore::ssd_hash::testing
