// The power goes at any moment: what is left has every checkpoint that was committed, whole.
#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "file_workload.h"
#include "tiers/medium/testing/power_medium.h"

namespace embstore::log::testing {
namespace {

using medium::testing::PowerMedium;
using medium::testing::Sync;

struct Cuts {
  uint64_t all = 0;
  uint64_t in_commits = 0;
  uint64_t faults = 0;
  std::string first_fault;
};

struct Run {
  uint64_t seed;
  Sync left_out = Sync::kNone;
  bool fails_syncs = false;  // now and then
};

// One table through several lives, each of which ends by a power cut; and before each call on a file the power goes by
// chance in a world of its own, of which nobody here knows.
void run(const Run& of, Cuts& cuts) {
  constexpr int kLives = 4;
  constexpr int kSteps = 150;
  const TemporaryDirectory directory;
  const TemporaryDirectory other;
  std::mt19937_64 random(of.seed + 1000);
  SsdHashOptions options = small_files_for_checkpoints();
  options.io_scheme = of.seed % 2 == 0 ? IoScheme::kPread : IoScheme::kAuto;
  auto medium = std::make_unique<PowerMedium>(directory / "0", of.seed);
  options.file_calls = medium.get();
  FileWorkload workload(directory / "0", of.seed, options);
  const auto look = [&](const std::string& path) {
    ++cuts.all;
    if (workload.is_committing()) ++cuts.in_commits;
    const std::string fault = fault_after_cut(path, workload.certain(), workload.uncertain());
    if (fault.empty()) return;
    ++cuts.faults;
    if (cuts.first_fault.empty()) cuts.first_fault = "seed " + std::to_string(of.seed) + ": " + fault;
  };
  const auto cut_by_chance = [&](uint64_t one_in) {
    if (random() % one_in != 0) return;
    medium->cut(other / "left");
    look(other / "left");
  };
  const auto listen = [&] {
    medium->leave_out(of.left_out);
    medium->before_each_call([&] { cut_by_chance(workload.is_committing() ? 3 : 9); });
  };
  listen();
  for (int life = 1;; ++life) {
    for (int step = 0; step < kSteps; ++step) {
      if (of.fails_syncs && random() % 10 == 0) medium->fail_sync_after(static_cast<int>(random() % 8));
      try {
        workload.step();
      } catch (const Error& error) {
        // A commit whose sync failed may be tried again.
        check(of.fails_syncs && std::string(error.what()).find("brought to its medium") != std::string::npos,
              error.what());
      }
      cut_by_chance(5);
      // What a fault left isn't gone on with.
      if (cuts.faults > 0) return medium->before_each_call(nullptr);
    }
    if (life == kLives) break;
    medium->before_each_call(nullptr);
    const std::string left = directory / std::to_string(life);
    medium->cut(left);
    auto next = std::make_unique<PowerMedium>(left, of.seed * 100 + life);
    workload.restart_in(left, *next);
    medium = std::move(next);
    listen();
  }
  medium->before_each_call(nullptr);
}

void every_checkpoint_survives_a_power_cut(bool fails_syncs) {
  Cuts cuts;
  for (uint64_t seed = 0; seed < 8 && cuts.faults == 0; ++seed) {
    run({.seed = seed, .fails_syncs = fails_syncs}, cuts);
  }
  check(cuts.faults == 0, cuts.first_fault);
  check(cuts.all > 1500 && cuts.in_commits > 300, "the power hardly ever went");
  std::printf("%llu power cuts, %llu of them in commits\n", static_cast<unsigned long long>(cuts.all),
              static_cast<unsigned long long>(cuts.in_commits));
}
TEST(every_checkpoint_survives_a_power_cut) { every_checkpoint_survives_a_power_cut(/*fails_syncs=*/false); }
TEST(every_checkpoint_survives_a_power_cut_where_syncs_fail) {
  every_checkpoint_survives_a_power_cut(/*fails_syncs=*/true);
}

// A process that is killed may have named or removed a manifest, and not synced the directory. The next process finds
// the directory as it was left, and relies on it: so it must be on the medium before.
void what_the_next_process_finds_lasts(Sync left_out, uint64_t commits, uint64_t drops) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    const TemporaryDirectory other;
    PowerMedium medium(directory / "0", seed);
    SsdHashOptions options = small_files_for_checkpoints();
    options.file_calls = &medium;
    CheckpointVersions certain;
    {
      TestTable table(directory / "0", options);
      for (uint64_t number = 1; number <= commits; ++number) {
        table.write(0, 1000, static_cast<int64_t>(number));
        if (number == commits && drops == 0) medium.leave_out(left_out);
        table.checkpoint();
        certain[number] = table.versions();
      }
      medium.leave_out(left_out);
      for (uint64_t number = 1; number <= drops; ++number) {
        table.checkpoints->drop(number);
        certain.erase(number);
      }
    }
    medium.leave_out(Sync::kNone);
    TestTable table(directory / "0", options);
    table.write(0, 1000, 9);  // where nothing is kept, in files of numbers that were given before
    for (int cut = 0; cut < 20; ++cut) {
      medium.cut(other / "left");
      const std::string fault = fault_after_cut(other / "left", certain, {});
      check(fault.empty(), fault);
    }
  }
  tested_case().clear();
}
TEST(a_checkpoint_that_the_next_process_finds_survives_a_power_cut) {
  what_the_next_process_finds_lasts(Sync::kManifestNamed, /*commits=*/2, /*drops=*/0);
}
TEST(a_checkpoint_that_the_next_process_does_not_find_stays_away_after_a_power_cut) {
  what_the_next_process_finds_lasts(Sync::kManifestRemoved, /*commits=*/2, /*drops=*/2);
}

// Or the tests above would hold whatever the tier does.
TEST(a_sync_that_is_left_out_shows) {
  for (const Sync left_out :
       {Sync::kRecords, Sync::kRecordsWrittenAnew, Sync::kDirectory, Sync::kParentDirectory, Sync::kManifest,
        Sync::kManifestNamed, Sync::kManifestRemoved}) {
    Cuts cuts;
    for (uint64_t seed = 0; seed < 20 && cuts.faults == 0; ++seed) {
      run({.seed = seed, .left_out = left_out, .fails_syncs = left_out == Sync::kRecordsWrittenAnew}, cuts);
    }
    check(cuts.faults > 0, "nobody misses sync " + std::to_string(static_cast<int>(left_out)));
    std::printf("sync %d left out, cut %llu: %s\n", static_cast<int>(left_out),
                static_cast<unsigned long long>(cuts.all), cuts.first_fault.c_str());
  }
}

}  // namespace
}  // namespace embstore::log::testing
