// Runs random operations on a table with DRAM and SSDHASH, where each call on its files fails in turn: once,
// or until the fault is repaired. Compares the table with a plain map after every operation.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "errors/error.h"
#include "keep/checkpoint/writer.h"
#include "table.h"
#include "testing/check.h"
#include "testing/failing_calls.h"

namespace embstore {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kRowBytes = kDim * sizeof(float);
constexpr uint64_t kFirstTierRows = 280;  // so that twice as many exceed its slots, headroom included
constexpr uint64_t kKeys = 2000;
constexpr int kSteps = 26;

struct ModelRow {
  float value;
  int64_t frequency;
  int64_t version;
  bool operator==(const ModelRow&) const = default;
};
using Model = std::map<int64_t, ModelRow>;

float initial_value(int64_t key) { return static_cast<float>(key % 7); }

class Scenario {
 public:
  Scenario(bool keep_files, CacheStrategy strategy, const Failure& failure)
      : keep_files_(keep_files), strategy_(strategy), calls_(failure), random_(11) {}

  void run() {
    open();
    for (int step = 0; step < kSteps; ++step) {
      if (calls_.still_fails() && below(6) == 0) calls_.repair();
      take_step();
      compare();
    }
    calls_.repair();
    settle();
    compare_all();
    // The failing call may be a read of find_damaged(): then it is repeated.
    check(table_->find_damaged().empty() || (calls_.has_failed() && table_->find_damaged().empty()),
          "rows are damaged although the medium gives them back");
    reopen();
    compare_all();
    apply(kFirstTierRows / 2);
    settle();
    compare_all();
    attempt("close", [this] { table_->close(); });
  }
  int64_t calls() const { return calls_.calls(); }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }

  TableSpec spec() {
    std::vector<float> initial;
    for (int64_t key = 0; key < 7; ++key) initial.insert(initial.end(), kDim, initial_value(key));
    TierSpec ssd{.kind = "SSDHASH", .path = directory_ / "rows", .size_bytes = std::nullopt};
    ssd.ssd_hash.io_scheme = medium::IoScheme::kPread;
    ssd.ssd_hash.file_bytes = 32 << 10;
    ssd.ssd_hash.buffer_bytes = 128 << 10;
    ssd.keeps_rows = keep_files_;
    ssd.ssd_hash.file_calls = &calls_;
    return {.name = "var",
            .dim = kDim,
            .default_values = initial,
            .optimizer = "SGD",
            .optimizer_params = {{"learning_rate", -1.0}},
            .tiers = {{.kind = "DRAM", .path = std::nullopt, .size_bytes = kFirstTierRows * kRowBytes}, ssd},
            .cache_strategy = strategy_};
  }

  // Does `call`, and returns whether it succeeded. If it fails, a fault must have struck; unless the fault
  // lasts, the next try must succeed.
  template <class Call>
  bool attempt(const char* what, Call call) {
    for (int tries = 0;; ++tries) {
      try {
        call();
        return true;
      } catch (const Error& error) {
        const std::string message = std::string(what) + ": " + error.what();
        check(calls_.has_failed(), "an error without a fault: " + message);
        check(error.kind() == ErrorKind::kStorage || error.kind() == ErrorKind::kDamagedRows, message);
        if (calls_.still_fails()) return false;
        // One error for the fault, and one for what the eviction thread met, which is reported later.
        check(tries < 2, "an error again, although nothing fails any more: " + message);
        compare();
      }
    }
  }
  template <class Call>
  void attempt_after_repair(const char* what, Call call) {
    if (attempt(what, call)) return;
    calls_.repair();
    check(attempt(what, call), "it fails after the repair");
  }

  void open() {
    attempt_after_repair("open", [this] {
      table_.emplace(spec());
      if (!keep_files_) return;
      const std::vector<log::CheckpointId> kept = table_->kept_rows();
      try {
        table_->take_over_kept_rows(kept.empty() ? nullptr : &kept.back(), log::draw_uuid());
      } catch (const Error&) {
        table_.reset();  // it may have some of the rows
        throw;
      }
    });
  }
  void reopen() {
    attempt_after_repair("close", [this] { table_->close(); });
    table_.reset();
    if (!keep_files_) model_.clear();
    open();
    if (!keep_files_) applies_ = 0;
  }
  void settle() {
    attempt("drain", [this] { table_->drain(); });
  }

  void take_step() {
    switch (below(16)) {
      case 0:
      case 1: apply(1 + below(20)); break;
      case 2:
      case 3:
      case 4: apply(100 + below(200)); break;
      case 5:
      case 6: apply(2 * kFirstTierRows); break;
      case 7:
      case 8: look_up(1 + below(50), LookUpPurpose::kServing); break;
      case 9: look_up(400, static_cast<LookUpPurpose>(below(3))); break;
      case 10: look_up_and_apply(); break;
      case 11: settle(); break;
      case 12: save({}, below(2) == 0); break;
      case 13: save({.min_version = applies_ - 6, .min_half_square = std::nullopt}, below(2) == 0); break;
      case 14: drop(); break;
      default: reopen();
    }
  }

  std::vector<int64_t> some_keys(uint64_t count) {
    std::set<int64_t> keys;
    while (keys.size() < count) keys.insert(static_cast<int64_t>(below(kKeys)));
    std::vector<int64_t> ids(keys.begin(), keys.end());
    std::shuffle(ids.begin(), ids.end(), random_);
    return ids;
  }

  void apply(uint64_t count) { apply(some_keys(count)); }
  void apply(std::vector<int64_t> ids) {
    if (below(2) == 0) ids.push_back(ids.front());
    std::vector<float> gradients;
    for (size_t i = 0; i < ids.size(); ++i) {
      gradients.insert(gradients.end(), kDim, static_cast<float>(1 + below(3)));
    }
    if (!attempt("apply", [&] { table_->apply_gradients(ids, gradients.data(), applies_); })) return;
    for (size_t i = 0; i < ids.size(); ++i) {
      ModelRow& row = model_.try_emplace(ids[i], ModelRow{initial_value(ids[i]), 0, 0}).first->second;
      row.value += gradients[i * kDim];
      row.frequency += 1;
      row.version = applies_;
    }
    ++applies_;
  }

  void look_up(uint64_t count, LookUpPurpose purpose) { look_up(some_keys(count), purpose); }
  void look_up(const std::vector<int64_t>& ids, LookUpPurpose purpose) {
    std::vector<float> rows(ids.size() * kDim);
    attempt("lookup", [&] {
      std::vector<int64_t> damaged;
      std::fill(rows.begin(), rows.end(), -1.0f);
      try {
        table_->lookup(ids, rows.data(), purpose);
      } catch (const DamagedRowsError& error) {
        damaged = error.keys();
        compare_rows(ids, rows, damaged);
        throw;
      }
      compare_rows(ids, rows, damaged);
    });
  }
  void compare_rows(const std::vector<int64_t>& ids, const std::vector<float>& rows,
                    const std::vector<int64_t>& damaged) const {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (std::find(damaged.begin(), damaged.end(), ids[i]) != damaged.end()) continue;
      const auto row = model_.find(ids[i]);
      const float expected = row == model_.end() ? initial_value(ids[i]) : row->second.value;
      for (int d = 0; d < kDim; ++d) check(rows[i * kDim + d] == expected, "a row is read as it never was");
    }
  }
  // The update uses what the look-up read.
  void look_up_and_apply() {
    const std::vector<int64_t> ids = some_keys(200);
    look_up(ids, LookUpPurpose::kTraining);
    apply(ids);
  }

  void drop() {
    const std::vector<int64_t> ids = some_keys(60);
    uint64_t there = 0;
    for (const int64_t id : ids) there += model_.erase(id);
    // If a drop fails, the rows are gone, and the work that keeps them from coming back is done later.
    attempt("drop", [&] {
      const uint64_t dropped = table_->drop(ids);
      check(dropped == there || dropped == 0, "a drop says another number");
    });
  }

  // A save that fails removes no rows but those that it was to drop.
  void save(const EvictionRule& eviction, bool incremental) {
    const auto goes = [&](const auto& row) {
      return eviction.min_version && row.second.version < *eviction.min_version;
    };
    attempt("save", [&] {
      const std::string path = directory_ / ("save-" + std::to_string(saves_++));
      checkpoint::Writer file(path, RowLayout(kDim, 0), {.incremental = incremental}, calls_);
      try {
        const SavedTable saved = table_->save(file, eviction, /*waiting_keys=*/true);
        std::erase_if(model_, goes);
        check(saved.rows_left == model_.size(), "a save says another number of rows");
        const checkpoint::FileSummary summary = file.finish();
        check(incremental || summary.totals.rows == model_.size(), "a save has another number of rows");
        table_->save_succeeded(saved.number);
      } catch (const Error&) {
        std::erase_if(model_, [&](const auto& row) { return goes(row) && !has_row(row.first); });
        throw;
      }
    });
  }
  bool has_row(int64_t key) const {
    int32_t tier = -1;
    table_->lookup_tier({&key, 1}, &tier);
    return tier >= 0;
  }

  // Checks that every row that can be read is the model's, and that none is missing.
  void compare() {
    if (!table_) return;
    try {
      check(table_->row_count() == model_.size(), "rows are missing, or too many");
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kClosed, error.what());
      return;  // a close() that must be repeated
    }
    const bool fails_before = calls_.has_failed();
    const ExportedRows rows = table_->export_rows(OnDamage::kSkip);
    compare(rows);
    if (rows.keys.size() == model_.size()) return;
    check(calls_.has_failed(), "rows can't be read, and nothing failed");
    if (!calls_.still_fails() && fails_before) compare_all();
  }
  void compare(const ExportedRows& rows) const {
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const auto expected = model_.find(rows.keys[i]);
      check(expected != model_.end(), "a row is there that was never brought");
      const ModelRow row{rows.values[i * kDim], rows.frequencies[i], rows.versions[i]};
      check(row == expected->second, [&] {
        return "row " + std::to_string(rows.keys[i]) + " is " + std::to_string(row.value) + " by " +
               std::to_string(row.frequency) + " updates, the last " + std::to_string(row.version) +
               ", and not " + std::to_string(expected->second.value) + " by " +
               std::to_string(expected->second.frequency) + ", the last " +
               std::to_string(expected->second.version);
      });
      for (int d = 1; d < kDim; ++d) check(rows.values[i * kDim + d] == row.value, "a row is torn");
    }
  }
  // Checks that the table has exactly the model's rows, and that all counts of rows agree.
  void compare_all() {
    ExportedRows rows;
    attempt("export", [&] { rows = table_->export_rows(); });
    check(rows.keys.size() == model_.size(), "rows are missing");
    compare(rows);
    if (calls_.still_fails()) return;
    settle();
    uint64_t in_tiers = 0;
    for (const TableStats::Level& level : table_->stats().tiers) {
      in_tiers += level.rows;
      check(level.rows <= level.capacity_rows, "a drained tier is over its capacity");
      check(level.rows == level.tier.rows,
            "a tier keeps rows that the index doesn't know: " + std::to_string(level.tier.rows) + " for " +
                std::to_string(level.rows));
    }
    check(in_tiers == model_.size(), "the tiers' rows aren't the table's");
  }

  const TemporaryDirectory directory_;
  const bool keep_files_;
  const CacheStrategy strategy_;
  FailingCalls calls_;
  std::mt19937_64 random_;
  std::optional<Table> table_;
  Model model_;
  int64_t applies_ = 0;
  uint64_t saves_ = 0;
};

int64_t run(bool keep_files, const Failure& failure) {
  Scenario scenario(keep_files, keep_files ? CacheStrategy::kLru : CacheStrategy::kLfu, failure);
  scenario.run();
  return scenario.calls();
}

constexpr Failure kFailures[] = {{.fault = Fault::kIoError},
                                 {.fault = Fault::kNoSpace},
                                 {.fault = Fault::kShort},
                                 {.fault = Fault::kIoError, .lasts = true},
                                 {.fault = Fault::kNoSpace, .lasts = true},
                                 {.fault = Fault::kShort, .lasts = true}};

void run(bool keep_files, size_t failure, int64_t call) {
  tested_case() = "call " + std::to_string(call) + ", failure " + std::to_string(failure) +
                  (keep_files ? ", files kept" : ", files not kept");
  Failure failing = kFailures[failure];
  failing.call = call;
  run(keep_files, failing);
}

// Runs about `scenarios` scenarios in each of which one call fails.
void the_table_is_as_before_whichever_call_fails(bool keep_files, int64_t scenarios) {
  const int64_t calls = run(keep_files, {});
  check(calls > 100, "too few calls for this test");
  const int64_t stride = std::max<int64_t>(1, calls * static_cast<int64_t>(std::size(kFailures)) / scenarios);
  int64_t ran = 0;
  for (size_t f = 0; f < std::size(kFailures); ++f) {
    for (int64_t call = static_cast<int64_t>(f) % stride; call < calls; call += stride, ++ran) {
      run(keep_files, f, call);
    }
  }
  std::printf("%lld calls, of which one failed in %lld scenarios\n", static_cast<long long>(calls),
              static_cast<long long>(ran));
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  if (argc > 3) {  // runs one scenario again: whether files are kept, the failure, the call
    embstore::run(std::atoi(argv[1]) != 0, static_cast<size_t>(std::atoi(argv[2])), std::atoll(argv[3]));
    std::printf("held: this one\n");
    return 0;
  }
  const int64_t scenarios = argc > 1 ? std::atoll(argv[1]) : 120;
  embstore::the_table_is_as_before_whichever_call_fails(/*keep_files=*/false, scenarios);
  embstore::the_table_is_as_before_whichever_call_fails(/*keep_files=*/true, scenarios);
  std::printf("held: whichever call fails\n");
  return 0;
}
