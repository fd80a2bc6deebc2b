// Threads that read, train, export, save and restore one table at random, checked for what must hold in every
// schedule. Made for the thread, address and undefined-behaviour sanitizers.
//
// Every gradient is a small whole number, the same in all columns, and the rule is SGD with a rate of -1. So
// float sums are exact in any order, a row that is not the same in all columns is torn, a row that shrinks
// was stale, and the sum of all rows shows whether an update was lost or doubled.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "errors/error.h"
#include "keep/checkpoint/restore.h"
#include "keep/checkpoint/writer.h"
#include "keep/table_checkpoint.h"
#include "pacing/device.h"
#include "pacing/recording.h"
#include "pacing/tier_pacer.h"
#include "table.h"
#include "testing/check.h"
#include "threads/helping_threads.h"

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

float checked_row(const float* row) {
  for (int d = 1; d < kDim; ++d) check(row[d] == row[0], "a row is torn");
  return row[0];
}

std::vector<int64_t> random_ids(std::mt19937_64& random, const Options& options) {
  // Some batches have more keys than a first tier has slots, and a few are shared by several threads.
  const uint64_t choice = random() % 64;
  const size_t size = options.batch_size * (choice == 0 ? 40 : choice < 5 ? 10 : 1);
  // Squared, so that some keys are hot; spread over all of int64.
  std::vector<int64_t> ids(size);
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

// Prepares a batch and takes it back: half its keys are new, and have a row meanwhile.
void prepare_and_take_back(Table& table, std::mt19937_64& random, const Options& options) {
  std::vector<int64_t> ids = random_ids(random, options);
  ids.resize(std::min(ids.size(), 10 * options.batch_size));  // tiers have room for this many
  for (size_t i = 0; i < ids.size(); i += 2) ids[i] = static_cast<int64_t>(random());
  const std::vector<float> gradients(ids.size() * kDim, 1.0f);
  table.prepare_apply(ids, gradients.data());
}

void read(const Table& table, std::mt19937_64& random, const Options& options) {
  const std::vector<int64_t> ids = random_ids(random, options);
  std::vector<float> rows(ids.size() * kDim);
  table.lookup(ids, rows.data(), ids.front() % 2 == 0 ? LookUpPurpose::kTraining : LookUpPurpose::kServing);
  for (size_t i = 0; i < ids.size(); ++i) checked_row(&rows[i * kDim]);
}

void read_one_key(const Table& table, int64_t key, float& last_seen) {
  const std::vector<int64_t> ids(8, key);
  std::vector<float> rows(ids.size() * kDim);
  table.lookup(ids, rows.data(), ids.front() % 2 == 0 ? LookUpPurpose::kTraining : LookUpPurpose::kServing);
  for (size_t i = 0; i < ids.size(); ++i) {
    const float value = checked_row(&rows[i * kDim]);
    check(value >= last_seen, "a row went back in time");
    last_seen = value;
  }
}

void inspect(Table& table, std::mt19937_64& random, const Options& options) {
  const std::vector<int64_t> ids = random_ids(random, options);
  std::vector<int64_t> values(ids.size());
  std::vector<int32_t> tiers(ids.size());
  table.frequencies(ids, values.data());
  table.versions(ids, values.data());
  table.lookup_tier(ids, tiers.data());
  const auto recording = std::make_shared<Recording>(std::vector{CacheSizes{1 << 20, 1 << 20}}, 1000);
  table.watch(recording.get(),
              [&](size_t tier) { return recording->watcher(0, static_cast<int32_t>(tier)); });
  const ExportedRows rows = table.export_rows();
  table.unwatch(recording.get());
  const bool was_recorded = !recording->phases().phases.empty();
  check(was_recorded || rows.keys.empty(), "an export wasn't recorded");
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    checked_row(&rows.values[i * kDim]);
    check(rows.versions[i] >= 0, "a row is there that no update has seen");
  }
  for (size_t i = 1; i < rows.keys.size(); ++i) {
    check(rows.keys[i - 1] < rows.keys[i], "a key is exported twice");
  }
}

// The storage, ranking and admission of a table's rows.
struct Storage {
  const char* name;
  std::vector<TierSpec> tiers;
  CacheStrategy strategy = CacheStrategy::kLfu;
  FilterSpec filter = NoFilter{};

  bool has_filter() const { return !std::holds_alternative<NoFilter>(filter); }
  bool keeps_rows() const { return tiers.back().keeps_rows; }
  bool has_pool() const { return tiers.size() > 1 && tiers[1].kind == "PMEM_POOL"; }
};

constexpr uint64_t kRowBytes = kDim * sizeof(float);
// The size of upper tiers: small, so that rows move all the time.
constexpr uint64_t kSmall = 200 * kRowBytes;
constexpr uint64_t kLarge = uint64_t{8} << 20;

TierSpec dram(uint64_t size_bytes) { return {"DRAM", std::nullopt, size_bytes}; }

TierSpec hbm(uint64_t size_bytes) {
  TierSpec tier{"HBM", std::nullopt, size_bytes};
  tier.gpu.name = "emulated";
  return tier;
}

// Paces a tier so that it takes a little longer than here, with caches before it.
TierSpec paced(TierSpec tier) {
  const std::vector<uint64_t> sizes = {64, 4096};
  const auto device = std::make_shared<Device>(
      "device of " + tier.kind, CacheSizes{64 << 10, tier.kind == "DRAM" ? uint64_t{256} << 10 : 0}, sizes,
      std::vector<double>(Device::kLocations * kAccesses * sizes.size() * Device::kMaxThreads, 300.0),
      std::vector<double>(kAccesses * sizes.size(), 3000.0));
  const auto pacer = std::make_shared<TierPacer>(device);
  tier.medium = pacer->medium();
  tier.watcher = pacer;
  return tier;
}

// Uses small files, so that they are compacted all the time.
TierSpec ssd_hash(bool keep_files) {
  TierSpec tier{"SSDHASH", std::nullopt, std::nullopt};
  tier.ssd_hash.file_bytes = 64 << 10;
  tier.ssd_hash.buffer_bytes = 128 << 10;
  tier.keeps_rows = keep_files;
  return tier;
}

TierSpec durable_pool(uint64_t size_bytes) { return {"PMEM_POOL", std::nullopt, size_bytes}; }
// The size of a pool above SSD: room for the rows of the largest batch beside those of the first tier and of
// moves, but not for all keys.
constexpr uint64_t kSmallPool = (PoolTier::kHeadroomSlots + 456 + 16 + 2800) * 256;

[[maybe_unused]] TierSpec leveldb() { return {"LEVELDB", std::nullopt, std::nullopt}; }

std::vector<Storage> storages() {
  const CounterFilterSpec counter{.filter_freq = 3};
  const BloomFilterSpec bloom{.filter_freq = 3, .max_element_size = 3000, .false_positive_probability = 0.01};
  return {
      {"one tier", {dram(kLarge)}},
      {"three tiers", {dram(kSmall), dram(kSmall * 3 / 2), dram(kLarge)}, CacheStrategy::kLru},
      {"three tiers, trained where they are", {dram(kSmall), dram(kSmall * 3 / 2), dram(kLarge)}},
      {"three tiers on devices", {paced(dram(kSmall)), paced(dram(kSmall * 3 / 2)), paced(ssd_hash(false))}},
      {"SSDHASH", {dram(kSmall), ssd_hash(false)}, CacheStrategy::kLru},
      {"SSDHASH that keeps its rows", {dram(kSmall), ssd_hash(true)}},
      {"a durable pool", {dram(kSmall), durable_pool(kLarge)}},
      {"a durable pool above SSDHASH", {dram(kSmall), durable_pool(kSmallPool), ssd_hash(false)}},
#ifndef __SANITIZE_THREAD__  // it can't see LevelDB's own locks: Debian's library isn't instrumented
      {"LEVELDB", {dram(kSmall), leveldb()}},
#endif
      {"HBM above DRAM and SSDHASH", {hbm(kSmall), dram(kSmall * 3 / 2), ssd_hash(true)}},
      {"one tier with a sketch", {dram(kLarge)}, CacheStrategy::kLfu, bloom},
      {"three tiers with a sketch",
       {dram(kSmall), dram(kSmall), ssd_hash(false)},
       CacheStrategy::kLfu,
       bloom},
      {"SSDHASH with a counter", {dram(kSmall), ssd_hash(true)}, CacheStrategy::kLru, counter}};
}

// Returns the spec of a table in a directory of its own.
TableSpec table_spec(const Storage& storage, const std::string& path) {
  TableSpec spec{
      .name = "stress",
      .dim = kDim,
      .default_values = std::vector<float>(kDim, 0.0f),
      .optimizer = "SGD",
      .optimizer_params = {{"learning_rate", -1.0}},
      .tiers = storage.tiers,
      .cache_strategy = storage.strategy,
      .filter = storage.filter,
  };
  for (TierSpec& tier : spec.tiers) {
    if (tier.kind == "PMEM_POOL") tier.path = path;
    if (tier.kind == "SSDHASH" || tier.kind == "LEVELDB") tier.path = path + ".ssd";
  }
  return spec;
}

// Saves of a table that other threads train meanwhile: one in full, then increments. Together they fill
// another table, which other threads read meanwhile.
class Checkpoints {
 public:
  explicit Checkpoints(const Storage& storage) : copy_(table_spec(storage, directory_ / "copy")) {}

  const Table& copy() const { return copy_; }

  // All of these are called by one thread at a time.
  void save_and_restore(Table& table, const EvictionRule& eviction = {}) {
    const SavedTable saved = save(table, eviction);
    restore(copy_);
    check(copy_.row_count() == saved.rows_left, "a restore lost or doubled a row");
  }
  SavedTable save(Table& table, const EvictionRule& eviction) {
    constexpr size_t kMaxIncrements = 6;
    if (chain_.size() > kMaxIncrements) chain_.clear();
    const std::string path = directory_ / std::to_string(saves_++);
    const bool incremental = !chain_.empty();
    checkpoint::Writer file(
        path, RowLayout(table.dim(), table.slot_count()),
        {.save_id = {}, .partition = 0, .partition_count = 1, .incremental = incremental});
    SavedTable saved = table.save(file, eviction, /*waiting_keys=*/true);
    file.finish();
    table.save_succeeded(saved.number);
    chain_.insert(chain_.begin(), {path});
    state_ = saved.state;
    return saved;
  }
  // Restores the state of the last save.
  void restore(Table& table) {
    table.restore({.number = 0, .count = 1}, chain_, state_, /*waiting_keys=*/true);
  }

 private:
  const TemporaryDirectory directory_;
  Table copy_;
  checkpoint::Chain chain_;
  TableState state_;
  uint64_t saves_ = 0;
};

ExportedRows checked_rows(const Table& table) {
  ExportedRows rows = table.export_rows();
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    checked_row(&rows.values[i * kDim]);
    check(rows.versions[i] >= 0, "a row is there that no update has seen");
  }
  return rows;
}

double sum_of(const ExportedRows& rows) {
  double sum = 0;
  for (size_t i = 0; i < rows.keys.size(); ++i) sum += rows.values[i * kDim];
  return sum;
}

void check_equal(const ExportedRows& rows, const ExportedRows& expected) {
  check(rows.keys == expected.keys, "other keys have rows");
  check(rows.values == expected.values && rows.frequencies == expected.frequencies &&
            rows.versions == expected.versions,
        "rows are others");
}

// Checks what holds for any table that no thread uses.
void check_ledgers(const Table& table) {
  table.drain();
  const TableStats stats = table.stats();
  uint64_t rows_of_tiers = 0;
  for (const TableStats::Level& level : stats.tiers) {
    check(level.rows <= level.capacity_rows, "a drained tier is over its capacity");
    // A pool also has copies of rows that are in the first tier.
    const bool may_have_copies = level.tier.name == "PMEM_POOL";
    check(may_have_copies ? level.rows <= level.tier.rows && level.tier.rows <= table.row_count()
                          : level.rows == level.tier.rows,
          "a tier keeps rows that the index doesn't know");
    rows_of_tiers += level.rows;
  }
  check(stats.background_error.empty(), stats.background_error);
  check(rows_of_tiers == table.row_count(), "the tiers' rows aren't the table's");
  check(checked_rows(table).keys.size() == table.row_count(), "the count and the export disagree");
  check(table.find_damaged().empty(), "a row is damaged");
}

// Checks a table whose updates add up to `total`, or to less if a filter kept keys waiting.
void check_settled(const Table& table, const Storage& storage, int64_t total) {
  check_ledgers(table);
  check(storage.tiers.size() == 1 || table.stats().demotions > 0, "nothing moved");
  const double sum = sum_of(table.export_rows());
  if (storage.has_filter()) {
    check(static_cast<int64_t>(sum) <= total && sum > 0, "an update was doubled");
  } else {
    check(static_cast<int64_t>(sum) == total, "an update was lost or doubled");
  }
}

// Runs `work` in several threads, each with random numbers of its own.
void in_threads(const Options& options, const std::function<void(std::mt19937_64& random)>& work) {
  std::vector<std::thread> threads;
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&work, seed = options.seed * 1000 + static_cast<uint64_t>(t)] {
      std::mt19937_64 random(seed);
      work(random);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// No update is lost or doubled, and no row goes back in time.
void run(const Options& options, const Storage& storage) {
  const int64_t hot_key = 0;
  const TemporaryDirectory directory;
  std::optional<Table> table(std::in_place, table_spec(storage, directory / "rows"));
  if (storage.keeps_rows()) table->take_over_kept_rows(nullptr, log::draw_uuid());  // there are none
  Checkpoints checkpoints(storage);
  std::atomic<int64_t> total{0};
  std::thread saver([&] {
    for (int i = 0; i < options.batches / 16; ++i) checkpoints.save_and_restore(*table);
  });
  in_threads(options, [&](std::mt19937_64& random) {
    float hot_value = 0.0f;
    for (int batch = 0; batch < options.batches; ++batch) {
      const uint64_t choice = random() % 16;
      if (choice < 7) {
        train(*table, random, options, total);
      } else if (choice < 8) {
        prepare_and_take_back(*table, random, options);
      } else if (choice < 10) {
        read(checkpoints.copy(), random, options);
      } else if (choice < 15) {
        read(*table, random, options);
        read_one_key(*table, hot_key, hot_value);
      } else {
        inspect(*table, random, options);
      }
    }
  });
  saver.join();

  checkpoints.save_and_restore(*table);
  check_settled(*table, storage, total.load());
  check_settled(checkpoints.copy(), storage, total.load());
  const ExportedRows rows = table->export_rows();
  check_equal(checkpoints.copy().export_rows(), rows);
  if (!storage.keeps_rows()) return;
  table->close();
  table.reset();
  table.emplace(table_spec(storage, directory / "rows"));
  const std::vector<log::CheckpointId> kept = table->kept_rows();
  check(kept.size() == 1, "a closed table has another number of checkpoints than one");
  table->take_over_kept_rows(&kept.front(), log::draw_uuid());
  check_equal(table->export_rows(), rows);
  check_ledgers(*table);
}

// While threads train and read a table, it is restored, and rows of it are dropped and evicted.
void run_replaced(const Options& options, const Storage& storage) {
  const TemporaryDirectory directory;
  Table table(table_spec(storage, directory / "rows"));
  Checkpoints checkpoints(storage);
  std::atomic<int64_t> total{0};
  std::atomic<bool> done{false};
  std::thread saver([&] {
    std::mt19937_64 random(options.seed);
    while (!done.load()) {
      EvictionRule eviction;
      if (random() % 3 == 0) eviction.min_version = table.apply_count() - 40;
      if (random() % 3 == 0) eviction.min_half_square = kDim;
      checkpoints.save_and_restore(table, eviction);
      if (random() % 2 == 0) checkpoints.restore(table);
      if (random() % 2 == 0) check(table.find_damaged().empty(), "a row is damaged");
    }
  });
  in_threads(options, [&](std::mt19937_64& random) {
    for (int batch = 0; batch < options.batches / 4; ++batch) {
      const uint64_t choice = random() % 16;
      if (choice < 6) {
        train(table, random, options, total);
      } else if (choice < 7) {
        prepare_and_take_back(table, random, options);
      } else if (choice < 11) {
        read(table, random, options);
      } else if (choice < 12) {
        inspect(table, random, options);
      } else if (choice < 14) {
        std::vector<int64_t> ids = random_ids(random, options);
        ids.resize(20);
        table.drop(ids);
      } else if (choice < 15) {
        table.stats();
      } else {
        table.drain();
      }
    }
  });
  done.store(true);
  saver.join();
  checkpoints.save_and_restore(table);
  check_ledgers(table);
  check_ledgers(checkpoints.copy());
  check_equal(checkpoints.copy().export_rows(), table.export_rows());
}

// Retries an apply while a small pool is full of what two checkpoints keep, until the next checkpoint lets
// the older one go.
void apply_when_there_is_room(Table& table, const std::vector<int64_t>& ids) {
  const std::vector<float> gradients(ids.size() * kDim, 1.0f);
  for (;;) {
    try {
      return table.apply_gradients(ids, gradients.data(), std::nullopt);
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kStoreFull, error.what());
      std::this_thread::yield();
    }
  }
}

void check_rows(const std::vector<log::KeptCheckpoint>& persisted,
                const std::vector<BegunCheckpoint>& begun) {
  for (const BegunCheckpoint& wanted : begun) {
    const auto found = std::find_if(persisted.begin(), persisted.end(), [&](const log::KeptCheckpoint& is) {
      return is.number == wanted.number;
    });
    check(found != persisted.end(), "a durable checkpoint is gone");
    check(found->rows == wanted.rows,
          "a checkpoint has " + std::to_string(found->rows) + " rows of " + std::to_string(wanted.rows));
  }
}

// Makes checkpoints of a table that threads train and read: each consists of whole batches, and after a cut
// the table is as it was at the last checkpoint. Every batch adds the same sum, so the count of batches
// determines the sum of all rows.
void run_persisted(const Options& options, const Storage& storage) {
  constexpr int kCuts = 6;
  const TemporaryDirectory directory;
  const RowLayout layout(kDim, /*slot_count=*/0);
  log::CheckpointId id{};
  BegunCheckpoint last;
  uint64_t files = 0;
  for (int cut = 0; cut < kCuts; ++cut) {
    Table table(table_spec(storage, directory / "rows"));
    if (cut != 0) {
      const std::vector<log::KeptCheckpoint> persisted = table.persisted();
      check(!persisted.empty() && persisted.back().number == last.number && persisted.back().id == id,
            "a durable checkpoint is gone");
      table.restore_persisted(last.number, {.number = 0, .count = 1}, {}, last.state, /*waiting_keys=*/true);
      check_ledgers(table);
      check(table.row_count() == last.rows, "a checkpoint lost or doubled a row");
      const auto batches = static_cast<double>(last.state.apply_count);
      check(sum_of(table.export_rows()) == batches * static_cast<double>(options.batch_size),
            "a checkpoint isn't of whole batches");
    }
    std::atomic<bool> done{false};
    const auto begin = [&] {
      checkpoint::Writer file(directory / std::to_string(files++), layout,
                              {.save_id = {}, .partition = 0, .partition_count = 1, .incremental = false});
      return table.begin_persist(file, /*waiting_keys=*/true);
    };
    std::thread persister([&] {
      do {
        const BegunCheckpoint before = begin();
        ++id[0];
        std::thread finisher([&table, &before, id] { table.finish_persist(before.number, id); });
        last = begin();  // while the one before it is being written
        finisher.join();
        ++id[0];
        table.finish_persist(last.number, id);
        check_rows(table.persisted(), {before, last});
        for (const log::KeptCheckpoint& older : table.persisted()) {
          if (older.number + 1 < last.number) table.drop_persisted(older.number);
        }
      } while (!done.load());
    });
    in_threads(options, [&](std::mt19937_64& random) {
      for (int batch = 0; batch < options.batches / kCuts; ++batch) {
        if (random() % 3 == 0) {
          read(table, random, options);
          continue;
        }
        std::vector<int64_t> ids = random_ids(random, options);
        ids.resize(options.batch_size);
        apply_when_there_is_room(table, ids);
        if (random() % 16 == 0) table.drain();
      }
    });
    done.store(true);
    persister.join();
  }
}

// Operations that race with close() either end or are refused with kClosed.
void run_close(const Options& options, const Storage& storage) {
  const TemporaryDirectory directory;
  Table table(table_spec(storage, directory / "rows"));
  std::atomic<int64_t> total{0};
  std::thread closer([&] {
    while (total.load() == 0) std::this_thread::yield();
    table.close();
  });
  in_threads(options, [&](std::mt19937_64& random) {
    try {
      for (;;) train(table, random, options, total);
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kClosed, error.what());
    }
  });
  closer.join();
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  embstore::Options options;
  if (argc > 1) options.seed = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) options.batches = std::atoi(argv[2]);
  embstore::HelpingThreads::set_most_threads(4);
  for (const embstore::Storage& storage : embstore::storages()) {
    embstore::tested_case() = storage.name;
    embstore::run(options, storage);
    embstore::run_replaced(options, storage);
    embstore::run_close(options, storage);
    if (storage.has_pool()) embstore::run_persisted(options, storage);
  }
  std::printf("held: seed %llu, %d threads, %d batches each\n", static_cast<unsigned long long>(options.seed),
              options.threads, options.batches);
  return 0;
}
