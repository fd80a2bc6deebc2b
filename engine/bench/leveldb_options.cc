// Measures the effect of LevelDB's options on a tier's work, one option changed at a time: loads rows
// in the order in which a cache evicts them, reads batches at random, then moves batches up and down.
//
//   leveldb_options DIRECTORY [ROWS [DIM]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "errors/error.h"
#include "tiers/leveldb/leveldb_tier.h"

namespace embstore {
namespace {

constexpr size_t kBatchRows = 4096;

// Counts the process's CPU time, LevelDB's compaction included, so that other loads on the machine
// don't show.
class Stopwatch {
 public:
  double seconds() const { return now() - start_; }

 private:
  static double now() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  double start_ = now();
};

struct Variant {
  std::string name;
  LevelDbOptions options;
};

std::vector<Variant> variants() {
  std::vector<Variant> all = {{"defaults", {}}};
  const auto add = [&](std::string name, const std::function<void(LevelDbOptions&)>& change) {
    LevelDbOptions options;
    change(options);
    all.push_back({std::move(name), options});
  };
  add("write buffer 16 MiB", [](LevelDbOptions& o) { o.write_buffer_bytes = size_t{16} << 20; });
  add("write buffer 64 MiB", [](LevelDbOptions& o) { o.write_buffer_bytes = size_t{64} << 20; });
  add("files of 2 MiB", [](LevelDbOptions& o) { o.max_file_bytes = size_t{2} << 20; });
  add("files of 64 MiB", [](LevelDbOptions& o) { o.max_file_bytes = size_t{64} << 20; });
  add("blocks of 1 KiB", [](LevelDbOptions& o) { o.block_bytes = size_t{1} << 10; });
  add("blocks of 16 KiB", [](LevelDbOptions& o) { o.block_bytes = size_t{16} << 10; });
  add("no Bloom filter", [](LevelDbOptions& o) { o.bloom_bits_per_row = 0; });
  add("cache 256 MiB", [](LevelDbOptions& o) { o.block_cache_bytes = size_t{256} << 20; });
  return all;
}

void measure(const Variant& variant, const std::string& directory, size_t row_count, int dim) {
  const RowLayout layout(dim, 1);
  LevelDbTier tier("bench", layout, directory + "/leveldb_options", variant.options);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<int64_t> keys(row_count);
  std::iota(keys.begin(), keys.end(), int64_t{0});
  std::shuffle(keys.begin(), keys.end(), random);
  std::vector<Place> places(row_count);  // by key

  RowBatch rows(layout);
  rows.resize(kBatchRows);
  for (size_t i = 0; i < kBatchRows; ++i) {
    for (size_t f = 0; f < layout.row_floats(); ++f) rows.row(i)[f] = normal(random);
  }
  std::vector<Slot> slots(kBatchRows);
  const auto write = [&](std::span<const int64_t> batch) {
    rows.resize(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) rows.header(i) = {batch[i], 1, 1, 1, 1, 1};
    tier.write(rows, std::span(slots).first(batch.size()));
    for (size_t i = 0; i < batch.size(); ++i) {
      places[static_cast<size_t>(batch[i])] = {batch[i], slots[i]};
    }
  };

  const Stopwatch loading;
  for (size_t i = 0; i < row_count; i += kBatchRows) {
    write(std::span(keys).subspan(i, std::min(kBatchRows, row_count - i)));
  }
  const double loaded = static_cast<double>(row_count) / loading.seconds();

  RowBatch read(layout);
  const auto pick = [&](bool distinct) {
    std::vector<int64_t> picked;
    // Neighbours in a shuffled order are distinct and random.
    const size_t start = random() % (row_count - kBatchRows);
    for (size_t i = 0; i < kBatchRows; ++i) {
      picked.push_back(distinct ? keys[start + i] : keys[random() % row_count]);
    }
    return picked;
  };
  const auto read_batches = [&](size_t batches) {
    const Stopwatch reading;
    std::vector<Place> wanted(kBatchRows);
    for (size_t batch = 0; batch < batches; ++batch) {
      const std::vector<int64_t> picked = pick(false);
      for (size_t i = 0; i < kBatchRows; ++i) wanted[i] = places[static_cast<size_t>(picked[i])];
      tier.read(wanted, read);
    }
    return static_cast<double>(batches * kBatchRows) / reading.seconds();
  };
  read_batches(5);
  const double reads = read_batches(50);

  constexpr size_t kMoves = 50;
  const Stopwatch moving;
  for (size_t batch = 0; batch < kMoves; ++batch) {
    const std::vector<int64_t> picked = pick(true);
    std::vector<Place> wanted;
    for (const int64_t key : picked) wanted.push_back(places[static_cast<size_t>(key)]);
    tier.read(wanted, rows);
    tier.erase(wanted);
    write(picked);
  }
  const double moves = static_cast<double>(kMoves * kBatchRows) / moving.seconds();
  const double reads_after = read_batches(50);
  std::printf("%-24s %9.0f %9.0f %9.0f %9.0f %8.1f\n", variant.name.c_str(), loaded, reads, moves,
              reads_after, static_cast<double>(tier.stats().mapped_bytes) / static_cast<double>(row_count));
  std::fflush(stdout);
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: leveldb_options DIRECTORY [ROWS [DIM]]\n");
    return 2;
  }
  const size_t rows = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000000;
  const int dim = argc > 3 ? std::atoi(argv[3]) : 16;
  std::printf("%zu rows of dim %d with one slot, batches of %zu; rows a CPU second\n", rows, dim,
              embstore::kBatchRows);
  std::printf("%-24s %9s %9s %9s %9s %8s\n", "", "write", "read", "move", "read", "bytes/row");
  try {
    for (const embstore::Variant& variant : embstore::variants()) {
      embstore::measure(variant, argv[1], rows, dim);
    }
  } catch (const embstore::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
