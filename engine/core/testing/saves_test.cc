// Tests saves whose every write to the file is interrupted by batches, look-ups and moves of the same table:
// they must write, to the bit, what an uninterrupted save wrote. With a save that blocks updates, this test
// would hang.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "errors/error.h"
#include "keep/checkpoint/reader.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/check.h"
#include "testing/watched_calls.h"

namespace embstore {
namespace {

constexpr int kDim = 128;
constexpr uint64_t kRowBytes = 2 * kDim * sizeof(float);
constexpr uint64_t kFirstTierRows = 600;
constexpr uint64_t kKeys = 12'000;

struct Storage {
  const char* name;
  std::vector<TierSpec> tiers;
  FilterSpec filter = NoFilter{};
};

TierSpec dram(uint64_t rows) { return {"DRAM", std::nullopt, rows * kRowBytes}; }
TierSpec ssd_hash() {
  TierSpec tier{"SSDHASH", std::nullopt, std::nullopt};
  tier.ssd_hash.file_bytes = 1 << 20;  // so that files are compacted
  tier.ssd_hash.buffer_bytes = 1 << 20;
  return tier;
}
TierSpec pool(uint64_t rows) { return {"PMEM_POOL", std::nullopt, (PoolTier::kHeadroomSlots + rows) * 1280}; }

std::vector<Storage> storages() {
  const CounterFilterSpec counter{.filter_freq = 2};
  const BloomFilterSpec bloom{.filter_freq = 2, .max_element_size = 9000, .false_positive_probability = 0.01};
  return {{"one tier", {dram(100'000)}},
          {"one tier with a filter", {dram(100'000)}, counter},
          {"three tiers", {dram(kFirstTierRows), dram(kFirstTierRows), dram(100'000)}},
          {"SSDHASH", {dram(kFirstTierRows), ssd_hash()}},
          {"three tiers with a sketch", {dram(kFirstTierRows), dram(kFirstTierRows), ssd_hash()}, bloom},
          {"a durable pool", {dram(kFirstTierRows), pool(30'000)}},
          {"a durable pool above SSDHASH with a filter",
           {dram(kFirstTierRows), pool(6000), ssd_hash()},
           counter}};
}

TableSpec table_spec(const Storage& storage, const std::string& path) {
  TableSpec spec{.name = "saved",
                 .dim = kDim,
                 .default_values = std::vector<float>(kDim, 0.25f),
                 .optimizer = "Adagrad",
                 .optimizer_params = {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}},
                 .tiers = storage.tiers,
                 .filter = storage.filter};
  for (TierSpec& tier : spec.tiers) {
    if (tier.kind == "PMEM_POOL") tier.path = path;
    if (tier.kind == "SSDHASH") tier.path = path + ".ssd";
  }
  return spec;
}

// The contents of a file, without their order.
struct Contents {
  std::map<int64_t, std::string> rows;
  std::set<int64_t> removed;
  std::map<int64_t, std::string> waiting;
  std::vector<std::string> sketches;
};

Contents read_file(const std::string& path) {
  Contents contents;
  checkpoint::Reader reader(path);
  const auto size = static_cast<size_t>(reader.header().record_bytes);
  while (const std::optional<checkpoint::Reader::Block> block = reader.next()) {
    const std::string bytes(reinterpret_cast<const char*>(block->payload.data()), block->payload.size());
    const auto key_at = [&bytes](size_t at) {
      int64_t key;
      std::memcpy(&key, bytes.data() + at, sizeof key);
      return key;
    };
    const auto each = [&](size_t record, auto take) {
      for (size_t at = 0; at < bytes.size(); at += record) take(key_at(at), bytes.substr(at, record));
    };
    if (block->kind == checkpoint::kRows) {
      each(size, [&](int64_t key, std::string row) {
        check(contents.rows.emplace(key, std::move(row)).second, "a save has a row twice");
      });
    } else if (block->kind == checkpoint::kRemovedKeys) {
      each(sizeof(int64_t), [&](int64_t key, const std::string&) { contents.removed.insert(key); });
    } else if (block->kind == checkpoint::kWaitingKeys) {
      each(sizeof(checkpoint::WaitingKeyRecord),
           [&](int64_t key, std::string waiting) { contents.waiting.emplace(key, std::move(waiting)); });
    } else if (block->kind == checkpoint::kSketch) {
      contents.sketches.push_back(bytes);
    }
  }
  return contents;
}

void check_equal(const Contents& is, const Contents& wanted) {
  check(is.rows.size() == wanted.rows.size(),
        "a save has " + std::to_string(is.rows.size()) + " rows of " + std::to_string(wanted.rows.size()));
  for (const auto& [key, row] : wanted.rows) {
    const auto found = is.rows.find(key);
    check(found != is.rows.end(), "a row is missing");
    check(found->second == row,
          [of = key] { return "row " + std::to_string(of) + " is not what it was at the moment"; });
  }
  check(is.removed == wanted.removed, "other keys are said to be removed");
  check(is.waiting == wanted.waiting && is.sketches == wanted.sketches, "other keys wait");
}

class Scene {
 public:
  Scene(const Storage& storage, uint64_t seed)
      : table_(table_spec(storage, directory_ / "rows")),
        copy_(table_spec({"", {dram(200'000)}, storage.filter}, "")),
        random_(seed) {
    if (seed % 2 == 0) table_.parts().image_memory.set_many_bytes(size_t{1} << 20);
  }

  void run() {
    constexpr int kBatches = kUnderThreadSanitizer ? 8 : 20;  // fewer rows under the sanitizer
    for (int batch = 0; batch < kBatches; ++batch) apply(1500);
    const uint64_t steps = scaled_count(14);
    for (uint64_t step = 0; step < steps; ++step) {
      for (uint64_t call = below(4); call != 0; --call) work();
      if (below(4) == 0) table_.drop(some_keys(40));
      if (below(4) == 0) fail_to_save();
      save();
    }
    check(interruptions_ > steps, "too few interruptions for this test");
    check(applies_beside_ > steps, "too few batches beside saves");
    table_.drain();
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }

  std::vector<int64_t> some_keys(uint64_t count) {
    std::vector<int64_t> ids(count);
    const uint64_t range = below(2) == 0 ? 300 : kKeys;
    for (int64_t& id : ids) id = static_cast<int64_t>(below(range) * 0x5851f42d4c957f2dULL);
    return ids;
  }
  void apply(uint64_t count) {
    const std::vector<int64_t> ids = some_keys(count);
    std::vector<float> gradients(ids.size() * kDim);
    for (float& gradient : gradients) gradient = static_cast<float>(below(1000)) / 1000;
    table_.apply_gradients(ids, gradients.data(), std::nullopt);
  }
  void work() {
    std::vector<float> rows(500 * kDim);
    switch (below(6)) {
      case 0:
      case 1: return apply(1 + below(400));
      case 2: return apply(400);
      case 3: return table_.lookup(some_keys(500), rows.data(), LookUpPurpose::kServing);
      case 4: return table_.drain();  // served accesses are counted, and rows move
      default: {
        const std::vector<int64_t> ids = some_keys(100);
        table_.prepare_apply(ids, rows.data());
      }
    }
  }
  bool interrupt(bool fails) {
    ++interruptions_;
    for (int call = 0; call < 4; ++call) work();
    const int64_t applied = table_.apply_count();
    check(applied >= begun_at_, "an update was lost");
    applies_beside_ += static_cast<uint64_t>(applied - begun_at_);
    return !fails || below(3) != 0;
  }

  // A file of the table. Before each write, `before_write` is called; if it returns false, the write fails.
  struct Saved {
    std::string path;
    SavedTable table;
  };
  Saved write(const std::function<bool()>& before_write) {
    const std::string path = directory_ / ("save-" + std::to_string(saves_++));
    begun_at_ = table_.apply_count();
    WatchedCalls calls;  // outlives the file's thread
    calls.before = [&before_write](const FileCall& call) {
      return call.kind == FileCall::kWrite && before_write && !before_write() ? EIO : 0;
    };
    checkpoint::Writer file(path, RowLayout(kDim, 1), {.incremental = !chain_.empty()}, calls);
    SavedTable saved = table_.save(file, {}, /*waiting_keys=*/true);
    file.finish();
    return {path, std::move(saved)};
  }

  void fail_to_save() {
    try {
      write([this] { return interrupt(/*fails=*/true); });
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kStorage, error.what());
    }
  }

  void save() {
    if (chain_.size() > 5) chain_.clear();
    const Saved quiet = write(nullptr);
    const ExportedRows rows = table_.export_rows();
    const Saved interrupted = write([this] { return interrupt(/*fails=*/false); });
    check_equal(read_file(interrupted.path), read_file(quiet.path));
    const TableState &is = interrupted.table.state, &wanted = quiet.table.state;
    check(is.apply_count == wanted.apply_count && is.clock == wanted.clock, "the state is another");
    check(interrupted.table.rows_left == rows.keys.size(), "a save says another number of rows");
    table_.save_succeeded(interrupted.table.number);
    chain_.insert(chain_.begin(), {interrupted.path});
    copy_.restore({}, chain_, is, /*waiting_keys=*/true);
    check(copy_.export_rows() == rows,
          "a chain of saves has other rows than the table at the moment of the last");
  }

  const TemporaryDirectory directory_;
  Table table_;
  Table copy_;
  std::mt19937_64 random_;
  checkpoint::Chain chain_;
  int64_t begun_at_ = 0;
  uint64_t saves_ = 0;
  uint64_t interruptions_ = 0;
  uint64_t applies_beside_ = 0;
};

// Two saves are written before the first one counts as successful.
void a_save_that_succeeds_late_takes_nothing_from_a_newer_one() {
  const TemporaryDirectory directory;
  Table table(table_spec({"", {dram(100'000)}}, ""));
  std::vector<int64_t> keys = keys_from(0, 10'000);
  table.apply_gradients(keys, std::vector<float>(keys.size() * kDim).data(), std::nullopt);
  const auto file_of = [&](const std::string& name, bool incremental) {
    return std::make_unique<checkpoint::Writer>(directory / name, RowLayout(kDim, 1),
                                                checkpoint::FileIdentity{.incremental = incremental});
  };
  const auto save = [&](const std::string& name, bool incremental) {
    const auto file = file_of(name, incremental);
    const SavedTable saved = table.save(*file, {}, /*waiting_keys=*/true);
    file->finish();
    return saved;
  };
  table.save_succeeded(save("full", false).number);
  table.drop(keys);
  const std::set<int64_t> dropped(keys.begin(), keys.end());

  const SavedTable late = save("late", true);
  const auto newer = file_of("newer", true);
  {
    const std::unique_ptr<TableSave> newer_save = table.prepare_save(*newer, {});
    newer_save->begin(/*waiting_keys=*/true);
    table.save_succeeded(late.number);
    newer_save->write(OnDamage::kRaise);  // it isn't reported as successful
  }
  newer->finish();
  save("last", true);
  for (const char* const name : {"late", "newer", "last"}) {
    check(read_file(directory / name).removed == dropped, std::string(name) + " has other removed keys");
  }
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const uint64_t seeds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2;
  embstore::a_save_that_succeeds_late_takes_nothing_from_a_newer_one();
  for (const embstore::Storage& storage : embstore::storages()) {
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
      embstore::tested_case() = std::string(storage.name) + ", seed " + std::to_string(seed);
      embstore::Scene(storage, seed).run();
    }
  }
  std::printf("held: saves beside updates\n");
  return 0;
}
