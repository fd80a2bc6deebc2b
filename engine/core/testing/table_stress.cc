// Threads that read, train and export one table at random, checked against what must hold whatever the
// schedule: made to be run under the thread, address and undefined-behaviour sanitizers.
//
// Every gradient is a small whole number, the same in all columns, and the rule is SGD with a rate of -1.
// So float sums are exact in any order, a row that is not the same in all columns is torn, a row that
// shrinks was stale, and the sum of all rows says whether an update was lost or doubled.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "errors/error.h"
#include "keep/checkpoint/restore.h"
#include "keep/checkpoint/writer.h"
#include "table.h"

namespace embstore {
namespace {

struct Options {
  int threads = 4;
  int batches = 400;
  int64_t keys = 3000;  // few, so that threads meet; enough for the index to grow several times
  size_t batch_size = 257;
  uint64_t seed = 1;
};

constexpr int kDim = 24;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}

void check(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

float checked_row(const float* row) {
  for (int d = 1; d < kDim; ++d) check(row[d] == row[0], "a row is torn");
  return row[0];
}

std::vector<int64_t> random_ids(std::mt19937_64& random, const Options& options) {
  // Squared, so that some keys are hot; spread over all of int64.
  std::vector<int64_t> ids(options.batch_size);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int64_t& id : ids) {
    const double u = uniform(random);
    const auto rank = static_cast<uint64_t>(u * u * static_cast<double>(options.keys));
    id = static_cast<int64_t>(rank * 0x5851f42d4c957f2dULL);
  }
  return ids;
}

void train(Table& table, std::mt19937_64& random, const Options& options, std::atomic<int64_t>& total) {
  const std::vector<int64_t> ids = random_ids(random, options);
  std::vector<float> gradients(ids.size() * kDim);
  int64_t sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto value = static_cast<int64_t>(random() % 3);
    sum += value;
    for (size_t d = 0; d < kDim; ++d) gradients[i * kDim + d] = static_cast<float>(value);
  }
  table.apply_gradients(ids, gradients.data(), std::nullopt);
  total += sum;
}

void read(const Table& table, std::mt19937_64& random, const Options& options) {
  const std::vector<int64_t> ids = random_ids(random, options);
  std::vector<float> rows(ids.size() * kDim);
  table.lookup(ids, rows.data(), /*train=*/ids.front() % 2 == 0);
  for (size_t i = 0; i < ids.size(); ++i) checked_row(&rows[i * kDim]);
}

void read_one_key(const Table& table, int64_t key, float& last_seen) {
  const std::vector<int64_t> ids(8, key);
  std::vector<float> rows(ids.size() * kDim);
  table.lookup(ids, rows.data(), /*train=*/ids.front() % 2 == 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const float value = checked_row(&rows[i * kDim]);
    check(value >= last_seen, "a row went back in time");
    last_seen = value;
  }
}

void inspect(const Table& table, std::mt19937_64& random, const Options& options) {
  const std::vector<int64_t> ids = random_ids(random, options);
  std::vector<int64_t> values(ids.size());
  std::vector<int32_t> tiers(ids.size());
  table.frequencies(ids, values.data());
  table.versions(ids, values.data());
  table.lookup_tier(ids, tiers.data());
  const ExportedRows rows = table.export_rows();
  for (size_t i = 0; i < rows.keys.size(); ++i) checked_row(&rows.values[i * kDim]);
  for (size_t i = 1; i < rows.keys.size(); ++i) {
    check(rows.keys[i - 1] < rows.keys[i], "a key is exported twice");
  }
}

// Saves of a table that others train meanwhile: one in full, then increments, which together fill another
// table, that others read meanwhile.
class Checkpoints {
 public:
  explicit Checkpoints(const TableSpec& spec)
      : copy_(spec),
        directory_(std::filesystem::temp_directory_path() / ("table_stress-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(directory_);
  }
  ~Checkpoints() { std::filesystem::remove_all(directory_); }
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  const Table& copy() const { return copy_; }

  // By one thread at a time.
  void save_and_restore(Table& table) {
    constexpr size_t kMostIncrements = 6;
    if (chain_.size() > kMostIncrements) chain_.clear();
    const std::string path = directory_ / std::to_string(saves_++);
    const bool incremental = !chain_.empty();
    checkpoint::Writer file(
        path, RowLayout(table.dim(), table.slot_count()),
        {.save_id = {}, .partition = 0, .partition_count = 1, .incremental = incremental});
    const SavedTable saved = table.save(file, {}, /*waiting_keys=*/true);
    file.finish();
    table.save_succeeded(saved.next_span);
    chain_.insert(chain_.begin(), {path});
    checkpoint::restore_table(copy_, {.number = 0, .count = 1}, chain_, saved.state, /*waiting_keys=*/true);
    check(copy_.row_count() == saved.rows_left, "a restore lost or doubled a row");
  }

 private:
  Table copy_;
  const std::filesystem::path directory_;
  checkpoint::Chain chain_;
  uint64_t saves_ = 0;
};

TableSpec table_spec(const std::vector<TierSpec>& tiers) {
  return TableSpec{
      .name = "stress",
      .dim = kDim,
      .default_values = std::vector<float>(kDim, 0.0f),
      .optimizer = "SGD",
      .optimizer_params = {{"learning_rate", -1.0}},
      .tiers = tiers,
  };
}

std::vector<TierSpec> one_tier() { return {{"DRAM", std::nullopt, uint64_t{8} << 20}}; }

// Small upper tiers, so that rows move all the time.
std::vector<TierSpec> three_tiers() {
  constexpr uint64_t kRowBytes = kDim * sizeof(float);
  return {{"DRAM", std::nullopt, 200 * kRowBytes},
          {"DRAM", std::nullopt, 300 * kRowBytes},
          {"DRAM", std::nullopt, uint64_t{8} << 20}};
}

// What holds of a table that nobody uses, whose updates add up to `total`.
void check_settled(const Table& table, int64_t total) {
  table.drain();
  const TableStats stats = table.stats();
  for (const TableStats::Level& level : stats.tiers) {
    check(level.rows <= level.capacity_rows, "a drained tier is over its capacity");
    check(level.rows == level.tier.rows, "a tier keeps rows that the index doesn't know");
  }
  check(stats.tiers.size() == 1 || stats.demotions > 0, "nothing moved");
  const ExportedRows rows = table.export_rows();
  check(rows.keys.size() == table.row_count(), "the count and the export disagree");
  double sum = 0;
  for (size_t i = 0; i < rows.keys.size(); ++i) sum += checked_row(&rows.values[i * kDim]);
  check(static_cast<int64_t>(sum) == total, "an update was lost or doubled");
}

void run(const Options& options, const std::vector<TierSpec>& tiers) {
  const int64_t hot_key = 0;
  Table table(table_spec(tiers));
  Checkpoints checkpoints(table_spec(tiers));
  std::atomic<int64_t> total{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < options.batches / 16; ++i) checkpoints.save_and_restore(table);
  });
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(options.seed * 1000 + static_cast<uint64_t>(t));
      float hot_value = 0.0f;
      for (int batch = 0; batch < options.batches; ++batch) {
        const uint64_t choice = random() % 16;
        if (choice < 8) {
          train(table, random, options, total);
        } else if (choice < 10) {
          read(checkpoints.copy(), random, options);
        } else if (choice < 15) {
          read(table, random, options);
          read_one_key(table, hot_key, hot_value);
        } else {
          inspect(table, random, options);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  checkpoints.save_and_restore(table);
  check_settled(table, total.load());
  check_settled(checkpoints.copy(), total.load());
}

// Operations that race with close() end, or are refused; nothing else.
void run_close(const Options& options, const std::vector<TierSpec>& tiers) {
  Table table(table_spec(tiers));
  std::atomic<int64_t> total{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(options.seed * 1000 + static_cast<uint64_t>(t));
      try {
        for (;;) train(table, random, options, total);
      } catch (const Error& error) {
        check(error.kind() == ErrorKind::kClosed, error.what());
      }
    });
  }
  while (total.load() == 0) std::this_thread::yield();
  table.close();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  embstore::Options options;
  if (argc > 1) options.seed = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) options.batches = std::atoi(argv[2]);
  for (const auto& tiers : {embstore::one_tier(), embstore::three_tiers()}) {
    embstore::run(options, tiers);
    embstore::run_close(options, tiers);
  }
  std::printf("held: seed %llu, %d threads, %d batches each\n", static_cast<unsigned long long>(options.seed),
              options.threads, options.batches);
  return 0;
}
