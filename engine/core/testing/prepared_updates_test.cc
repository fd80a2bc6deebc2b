// Tests of updates that are prepared while others are: whatever the others do in between, readers of a row
// learn that it changes, and an update that is taken back leaves nothing behind.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parts/table_parts.h"
#include "table.h"
#include "testing/failing_memory.h"
#include "testing/tests.h"
#include "update/gathered_update.h"

namespace embstore {
namespace {

constexpr int kDim = 4;

TierSpec one_tier() { return {"DRAM", std::nullopt, uint64_t{1} << 20}; }

TableSpec table_of(std::vector<TierSpec> tiers) {
  return {.name = "var",
          .dim = kDim,
          .default_values = std::vector<float>(kDim, 0.0f),
          .optimizer = "SGD",
          .optimizer_params = {{"learning_rate", -1.0}},
          .tiers = std::move(tiers)};
}

TableSpec two_tiers() { return table_of({one_tier(), one_tier()}); }

class PreparedUpdate {
 public:
  PreparedUpdate(TableParts& table, std::vector<int64_t> ids)
      : ids_(std::move(ids)),
        gradients_(ids_.size() * kDim, 1.0f),
        batch_(GradientBatch::take_spare()),
        reads_(table.reads),
        table_(table) {
    batch_->group(ids_, gradients_.data(), kDim);
    update_ = std::make_unique<GatheredUpdate>(table.for_updates(), *batch_, *table.mover, reads_);
    uint64_t new_rows = 0;
    check(update_->prepare(new_rows), "there is no room");
  }
  void commit() {
    MutexLock lock(table_.state_mutex);
    update_->commit({{.global_step = 1, .state = table_.optimizer_state},
                     table_.clock.begin_batch(ids_.size()),
                     /*save_span=*/0});
  }

 private:
  const std::vector<int64_t> ids_;
  const std::vector<float> gradients_;
  std::unique_ptr<GradientBatch> batch_;
  UpdateReads reads_;
  TableParts& table_;
  std::unique_ptr<GatheredUpdate> update_;
};

TEST(readers_see_an_update_although_another_was_taken_back) {
  constexpr int64_t kOthers = 20'000;
  constexpr int64_t kKeys = 200;
  TableParts table(two_tiers());
  {
    const Epochs::Guard guard = table.epochs.enter();
    const ApplyGate::Shared gate(table.gate);
    // Buckets that another update's keys fill pass on many keys of these updates, and are empty again
    // afterwards.
    std::vector<int64_t> others;
    for (int64_t key = 0; key < kOthers; ++key) others.push_back(kKeys + key);
    auto taken_back = std::make_unique<PreparedUpdate>(table, others);
    std::vector<std::unique_ptr<PreparedUpdate>> updates;
    for (int64_t key = 0; key < kKeys; ++key) {
      updates.push_back(std::make_unique<PreparedUpdate>(table, std::vector<int64_t>{key}));
    }
    taken_back.reset();
    check(table.store->row_count() == kKeys, "rows of the update that was taken back are left");
    for (int64_t key = 0; key < kKeys; ++key) {
      const IndexHit hit = IndexReader(table.store->index()).find(key);
      check(static_cast<bool>(hit.ref), "a row is missing");
      updates[static_cast<size_t>(key)]->commit();
      check(!hit.is_valid(), "a row changed and its readers aren't told");
    }
  }
  table.mover->stop();
}

// Returns how many slots of the first tier look as if a row filled them.
uint64_t filled_slots(const Table& table) {
  const MemoryTier& first = table.parts().store->tiers().first();
  uint64_t filled = 0;
  for (Slot slot = 0; slot < first.first_never_taken(); ++slot) filled += first.ranks().is_filled(slot);
  return filled;
}

TEST(an_update_that_memory_runs_out_for_leaves_all_rows_as_they_were) {
  const TemporaryDirectory directory;
  Table table(table_of(
      {{"DRAM", std::nullopt, 300 * kDim * sizeof(float)}, {"SSDHASH", directory / "rows", std::nullopt}}));
  const auto apply = [&table](const std::vector<int64_t>& keys) {
    const std::vector<float> gradients(keys.size() * kDim, 1.0f);
    table.apply_gradients(keys, gradients.data(), std::nullopt);
  };
  constexpr int64_t kKnown = 600;
  apply(keys_from(0, kKnown));
  table.drain();
  // Some rows are above, some below, and some keys have no row.
  const std::vector<int64_t> ids = keys_from(100, 1000);
  const auto check_rows = [&](float of_known) {
    std::vector<float> rows(ids.size() * kDim);
    table.lookup(ids, rows.data(), LookUpPurpose::kTraining);  // so that the update finds the rows read
    for (size_t i = 0; i < rows.size(); ++i) {
      check(rows[i] == of_known - (ids[i / kDim] < kKnown ? 0.0f : 1.0f), "a row is another");
    }
  };
  check_rows(1.0f);
  with_each_allocation_failing([&] { apply(ids); },
                               [&] {
                                 check(table.row_count() == kKnown, "an update that failed left rows");
                                 check_rows(1.0f);
                               });
  check(table.row_count() == kKnown + 500, "rows are missing");
  check_rows(2.0f);
}

TEST(an_update_that_is_taken_back_frees_its_slots_although_look_ups_count_its_rows) {
  constexpr auto kUpdates = static_cast<int>(scaled_count(2000));
  Table table(two_tiers());
  std::vector<int64_t> ids = keys_from(0, 1000);
  const std::vector<float> gradients(ids.size() * kDim, 1.0f);
  std::atomic<bool> done{false};
  std::thread server([&] {
    std::vector<float> rows(gradients.size());
    while (!done.load()) table.lookup(ids, rows.data(), LookUpPurpose::kServing);
  });
  for (int i = 0; i < kUpdates; ++i) table.prepare_apply(ids, gradients.data());
  done.store(true);
  server.join();
  table.drain();
  check(table.row_count() == 0, "rows of updates that were taken back are left");
  check(filled_slots(table) == 0, "a free slot looks as if a row filled it");
}

// The key is admitted at its third occurrence. Two batches have it once and three times; they are prepared in
// the order that `first` says.
TEST(occurrences_of_a_key_count_whichever_other_batch_has_it) {
  enum class First { kWaiting, kAdmitted };
  enum class Admitted { kCommittedFirst, kCommittedLast, kTakenBack };
  for (const First first : {First::kWaiting, First::kAdmitted}) {
    for (const Admitted admitted :
         {Admitted::kCommittedFirst, Admitted::kCommittedLast, Admitted::kTakenBack}) {
      TableSpec spec = table_of({one_tier(), one_tier()});
      spec.filter = CounterFilterSpec{.filter_freq = 3};
      Table table(spec);
      {
        const Epochs::Guard guard = table.parts().epochs.enter();
        const ApplyGate::Shared gate(table.parts().gate);
        std::unique_ptr<PreparedUpdate> once;
        std::unique_ptr<PreparedUpdate> thrice;
        const auto prepare_once = [&] {
          once = std::make_unique<PreparedUpdate>(table.parts(), std::vector<int64_t>{7});
        };
        if (first == First::kWaiting) prepare_once();
        thrice = std::make_unique<PreparedUpdate>(table.parts(), std::vector<int64_t>{7, 7, 7});
        if (first == First::kAdmitted) prepare_once();
        if (admitted == Admitted::kCommittedFirst) thrice->commit();
        once->commit();
        if (admitted == Admitted::kCommittedLast) thrice->commit();
      }
      const std::vector<int64_t> key = {7};
      int64_t frequency = 0;
      table.frequencies(key, &frequency);
      const bool is_taken_back = admitted == Admitted::kTakenBack;
      check(frequency == (is_taken_back ? 1 : 4), "occurrences were lost, or came twice");
      check(table.row_count() == (is_taken_back ? 0 : 1),
            "a key below the threshold has a row, or another none");
    }
  }
}

uint64_t filter_bytes(const TableParts& table) {
  uint64_t bytes = 0;
  for (int s = 0; s < kShards; ++s) {
    MutexLock lock(table.store->shard(s).mutex);
    bytes += table.filters.shard(s)->size_bytes();
  }
  return bytes;
}

void a_filter_does_not_grow_for_keys_that_it_knows_or_that_have_a_row(std::vector<TierSpec> tiers) {
  TableSpec spec = table_of(std::move(tiers));
  spec.filter = CounterFilterSpec{.filter_freq = 3};
  Table table(spec);
  const TableParts& parts = table.parts();
  std::vector<int64_t> rows = keys_from(0, 5000);
  // Enough keys that the counts of some shards fill all of their room.
  std::vector<int64_t> waiting = keys_from(1'000'000, 10'000);
  const std::vector<float> gradients(waiting.size() * kDim, 1.0f);
  const auto apply = [&](const std::vector<int64_t>& ids) {
    table.apply_gradients(ids, gradients.data(), std::nullopt);
  };
  for (int i = 0; i < 3; ++i) apply(rows);
  for (const int64_t id : waiting) apply({id});
  check(table.row_count() == rows.size(), "keys that wait have rows");
  const uint64_t bytes = filter_bytes(parts);
  for (int i = 0; i < 3; ++i) apply(rows);
  check(filter_bytes(parts) == bytes, "a filter grew for keys that have a row");
  apply(waiting);
  check(filter_bytes(parts) == bytes, "a filter grew for keys that it knows");
  apply(waiting);
  check(table.row_count() == rows.size() + waiting.size(), "keys at the threshold have no row");
  check(filter_bytes(parts) == bytes, "a filter grew for keys that it admitted");
}

// A table whose upper tiers have room for ten rows each.
class RestingRows {
 public:
  static constexpr size_t kRows = 10;

  explicit RestingRows(size_t upper_tiers) : table_(table_of(tiers(upper_tiers))) {}

  void train(int64_t first, size_t count, int times) {
    std::vector<int64_t> keys = keys_from(first, count);
    const std::vector<float> gradients(count * kDim, 1.0f);
    for (int i = 0; i < times; ++i) table_.apply_gradients(keys, gradients.data(), std::nullopt);
  }
  void serve(int64_t key, int times) {
    std::vector<float> row(kDim);
    for (int i = 0; i < times; ++i) table_.lookup({&key, 1}, row.data(), LookUpPurpose::kServing);
  }
  void check_tier(int64_t key, int32_t wanted, const char* what) {
    table_.parts().mover->settle();
    int32_t tier = -1;
    table_.lookup_tier({&key, 1}, &tier);
    check(tier == wanted, what);
  }
  // Prepares an update of the key's row, then runs `between` on another thread.
  template <class Between>
  void update(int64_t key, bool commit, Between between) {
    const Epochs::Guard guard = table_.parts().epochs.enter();
    const ApplyGate::Shared gate(table_.parts().gate);
    PreparedUpdate update(table_.parts(), {key});
    std::thread(between).join();
    if (commit) update.commit();
  }
  // Drains the table, and returns how many rows tier `t` has then.
  uint64_t rows_when_drained(size_t t) {
    table_.drain();
    return table_.parts().store->rows(t);
  }

 private:
  static std::vector<TierSpec> tiers(size_t upper_tiers) {
    TierSpec upper = one_tier();
    upper.size_bytes = kRows * kDim * sizeof(float);
    std::vector<TierSpec> tiers(upper_tiers, upper);
    tiers.push_back(one_tier());
    return tiers;
  }

  Table table_;
};

// A look-up's accesses are counted after the update found that the row stays outranked, and before the row is
// updated below.
TEST(a_row_that_rests_comes_up_if_what_was_counted_meanwhile_makes_it_outrank_others) {
  RestingRows rows(1);
  rows.train(0, RestingRows::kRows, 9);
  rows.train(50, 10, 1);
  rows.check_tier(50, 1, "a row is where others outrank it");
  rows.update(50, /*commit=*/true, [&rows] {
    rows.check_tier(50, 1, "a row came up that stays outranked");
    rows.serve(50, 7);
    rows.check_tier(50, 1, "a row came up that is outranked");
  });
  rows.check_tier(50, 0, "a row stays below others that were accessed as often, and before");
}

void a_row_that_rests_in_a_middle_tier_stays_there_until_its_update_has_ended(bool commit) {
  RestingRows rows(2);
  rows.train(0, RestingRows::kRows, 9);
  rows.train(10, RestingRows::kRows, 3);
  rows.train(50, 1, 1);
  rows.check_tier(10, 1, "the coldest row of the middle isn't there");
  rows.update(10, commit, [&rows] {
    rows.train(50, 1, 3);
    rows.check_tier(50, 1, "a row isn't where it belongs");
    rows.check_tier(10, 1, "a pinned row has left its tier");
    rows.check_tier(11, 1, "a row that outranks a pinned one went in its place");
  });
  rows.check_tier(10, commit ? 1 : 2, "a row whose update has ended isn't where it belongs");
  rows.check_tier(11, commit ? 2 : 1, "another isn't");
  rows.train(60, RestingRows::kRows, 5);
  rows.check_tier(10, 2, "a row is pinned although its update has ended");
}

void a_row_that_comes_up_before_its_update_has_ended_stays_up_until_then(bool commit) {
  RestingRows rows(2);
  rows.train(0, RestingRows::kRows, 9);
  rows.train(10, RestingRows::kRows, 3);
  rows.check_tier(10, 1, "a row is where others outrank it");
  rows.update(10, commit, [&rows] {
    rows.serve(10, 7);
    rows.check_tier(10, 0, "a row stays below others that it outranks");
    rows.train(60, RestingRows::kRows, 12);
    rows.check_tier(10, 0, "a pinned row has left its tier");
  });
  rows.check_tier(10, 1, "a row is pinned although its update has ended");
}

bool sleeps(const std::string& thread) {
  std::ifstream stat("/proc/self/task/" + thread + "/stat");
  const std::string all{std::istreambuf_iterator<char>(stat), {}};
  return all.find(") S ") != std::string::npos;
}

TEST(drain_waits_for_an_update_that_keeps_a_middle_tier_over_its_capacity) {
  RestingRows rows(2);
  rows.train(0, RestingRows::kRows, 9);
  rows.train(10, RestingRows::kRows, 3);
  rows.train(50, 1, 1);
  rows.check_tier(10, 1, "the coldest row of the middle isn't there");
  std::atomic<bool> is_drained{false};
  uint64_t left = 0;
  std::thread drains;
  rows.update(10, /*commit=*/true, [&] {
    rows.serve(50, 20);
    rows.check_tier(0, 1, "the coldest row of the first tier is there still");
    std::promise<std::string> id;
    drains = std::thread([&] {
      id.set_value(std::to_string(gettid()));
      left = rows.rows_when_drained(1);
      is_drained = true;
    });
    const std::string drainer = id.get_future().get();
    while (!is_drained && !sleeps(drainer)) std::this_thread::yield();
  });
  drains.join();
  check(left == RestingRows::kRows, "a drained table has a tier with more rows than it may have");
}

TEST(filters_do_not_grow_for_keys_that_they_know_or_that_have_a_row) {
  const TierSpec tier = one_tier();
  a_filter_does_not_grow_for_keys_that_it_knows_or_that_have_a_row({tier});
  a_filter_does_not_grow_for_keys_that_it_knows_or_that_have_a_row({tier, tier});
}

TEST(rows_stay_where_their_update_is_until_it_has_ended) {
  for (const bool commit : {true, false}) {
    a_row_that_rests_in_a_middle_tier_stays_there_until_its_update_has_ended(commit);
    a_row_that_comes_up_before_its_update_has_ended_stays_up_until_then(commit);
  }
}

}  // namespace
}  // namespace embstore
