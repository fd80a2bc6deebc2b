// ssd_hash_bench DIRECTORY [ROWS [DIM [SLOTS]]]: rows written, read at random and replaced a second, for
// every I/O scheme, through the page cache and past it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tiers/log/ssd_hash_tier.h"

namespace embstore::log {
namespace {

using medium::IoScheme;

class VectorIndex final : public Relocator {
 public:
  explicit VectorIndex(size_t keys) : slots(keys) {}
  void relocate(std::span<Relocation> rows) override {
    for (Relocation& row : rows) {
      Slot& slot = slots[static_cast<size_t>(row.key)];
      row.done = slot == row.from;
      if (row.done) slot = row.to;
    }
  }
  std::vector<Slot> slots;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(const std::string& directory, int64_t row_count, const RowLayout& layout, IoScheme scheme,
             bool direct, CompactionMode compaction) {
  constexpr size_t kBatch = 4096;
  SsdHashOptions options;
  options.io_scheme = scheme;
  options.direct = direct;
  options.compaction = compaction;
  VectorIndex index(static_cast<size_t>(row_count));  // outlives the tier's own thread
  SsdHashTier tier({.table_name = "bench", .optimizer = "", .layout = layout, .uuid = {}},
                   directory + "/rows", options);
  tier.start_compaction(index);
  std::mt19937_64 random(1);
  RowBatch rows(layout);
  std::vector<Slot> slots(kBatch);

  rows.resize(kBatch);
  auto start = std::chrono::steady_clock::now();
  for (int64_t first = 0; first + static_cast<int64_t>(kBatch) <= row_count; first += kBatch) {
    for (size_t i = 0; i < kBatch; ++i) rows.header(i).key = first + static_cast<int64_t>(i);
    tier.write(rows, slots);
    for (size_t i = 0; i < kBatch; ++i) index.slots[static_cast<size_t>(first) + i] = slots[i];
  }
  const double written = static_cast<double>(row_count) / seconds_since(start);

  const auto keys = static_cast<uint64_t>(row_count) / kBatch * kBatch;
  std::vector<Place> places(kBatch);
  const int read_batches = direct ? 20 : 200;
  double reading = 0;
  for (int batch = 0; batch < read_batches; ++batch) {
    for (Place& place : places) {
      const uint64_t key = random() % keys;
      place = {static_cast<int64_t>(key), index.slots[key]};
    }
    start = std::chrono::steady_clock::now();
    tier.read(places, rows);
    reading += seconds_since(start);
    for (size_t i = 0; i < kBatch; ++i) {
      if (rows.header(i).key != places[i].key) std::abort();
    }
  }
  const double read = static_cast<double>(kBatch) * read_batches / reading;

  // As an eviction: the row is written anew, the old place erased.
  const int replace_batches = static_cast<int>(2 * row_count / static_cast<int64_t>(kBatch));
  double replacing = 0;
  for (int batch = 0; batch < replace_batches; ++batch) {
    for (size_t i = 0; i < kBatch; ++i) rows.header(i).key = static_cast<int64_t>(random() % keys);
    start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < kBatch; ++i) {
      Slot& slot = index.slots[static_cast<size_t>(rows.header(i).key)];
      places[i] = {rows.header(i).key, slot};
      slot = UINT32_MAX;
    }
    tier.erase(places);
    tier.write(rows, slots);
    for (size_t i = 0; i < kBatch; ++i) {
      Slot& slot = index.slots[static_cast<size_t>(rows.header(i).key)];
      if (slot != UINT32_MAX) tier.erase(std::vector{Place{rows.header(i).key, slot}});  // twice in a batch
      slot = slots[i];
    }
    replacing += seconds_since(start);
  }
  const double replaced = static_cast<double>(kBatch) * replace_batches / replacing;
  const SsdHashStats stats = tier.detailed_stats();
  std::printf(
      "%-8s %-6s %-14s %11.0f %11.0f %11.0f %6.2f %6.2f\n",
      (scheme == IoScheme::kAuto ? "auto" : stats.io_scheme.c_str()), direct ? "direct" : "cached",
      compaction == CompactionMode::kOwnThread ? "own thread" : "writing thread", written, read, replaced,
      static_cast<double>(stats.file_bytes_peak) / static_cast<double>(stats.live_rows * stats.record_bytes),
      static_cast<double>(stats.bytes_written) / static_cast<double>(stats.record_bytes) /
          static_cast<double>(row_count + static_cast<int64_t>(kBatch) * replace_batches));
  std::fflush(stdout);
}

}  // namespace
}  // namespace embstore::log

int main(int argc, char** argv) {
  using namespace embstore;
  using medium::IoScheme;
  if (argc < 2) {
    std::fprintf(stderr, "usage: ssd_hash_bench DIRECTORY [ROWS [DIM [SLOTS]]]\n");
    return 2;
  }
  const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 1000000;
  const RowLayout layout(argc > 3 ? std::atoi(argv[3]) : 16, argc > 4 ? std::atoi(argv[4]) : 1);
  std::printf("%lld rows of %zu bytes, batches of 4096, rows a second\n", static_cast<long long>(rows),
              layout.row_bytes());
  std::printf("%-8s %-6s %-14s %11s %11s %11s %6s %6s\n", "scheme", "", "compaction", "written", "read",
              "replaced", "space", "writes");
  for (const bool direct : {false, true}) {
    for (const IoScheme scheme : {IoScheme::kAuto, IoScheme::kPread, IoScheme::kIoUring}) {
      if (direct && scheme == IoScheme::kAuto) continue;  // comes to one of the others
      log::measure(argv[1], rows, layout, scheme, direct, CompactionMode::kWritingThread);
    }
  }
  log::measure(argv[1], rows, layout, IoScheme::kAuto, false, CompactionMode::kOwnThread);
  return 0;
}
