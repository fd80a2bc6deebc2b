// Tests that cut the power at any moment: what is left has every committed checkpoint, whole.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "tiers/medium/testing/pmem_medium.h"
#include "tiers/medium/testing/power_medium.h"
#include "workload.h"

namespace embstore::log::testing {
namespace {

using medium::testing::PmemMedium;
using medium::testing::PowerMedium;
using medium::testing::Sync;

struct Cuts {
  uint64_t all = 0;
  uint64_t in_commits = 0;  // commits and drops are few calls, and matter most
  uint64_t faults = 0;
  std::string first_fault;
};

enum class Rows {
  kInPmem,
  kInPageCache,
  kInFiles
};  // a pool on persistent memory, a pool in a plain file, or files

// The power is cut at one in this many calls, calls of commits and drops, and steps.
struct Odds {
  uint64_t call;
  uint64_t commit;
  uint64_t step;
};

struct Run {
  Rows rows;
  uint64_t seed;
  Sync left_out = Sync::kNone;
  bool leaves_out_drains = false;
  bool fails_syncs = false;  // some syncs fail
};

// A site whose medium loses its power. A pool's rows are on one medium, all other files on another.
class Machine {
 public:
  Machine(Rows rows, const std::string& root, uint64_t seed) : random_(seed + 1000), files_(root, seed) {
    if (rows != Rows::kInFiles) pmem_.emplace(rows == Rows::kInPmem);
    site.is_pool = rows != Rows::kInFiles;
    site.root = root;
    site.slots = PoolTier::kHeadroomSlots + 3000;
    site.options.io_scheme = seed % 2 == 0 ? IoScheme::kPread : IoScheme::kAuto;
    site.calls = &files_;
    if (pmem_) site.libpmem = &pmem_->calls();
    std::filesystem::create_directories(root + "/manifests");
  }
  // Writes to `to` what a power cut now leaves, and returns the site by which another process opens it.
  TableSite cut(const std::string& to) {
    files_.cut(to);
    // Anything from hardly any bytes to nearly all may survive.
    if (pmem_) pmem_->cut(site.root + "/manifests", to + "/manifests", random_() % 101, random_);
    TableSite left = site;
    left.root = to;
    left.calls = &files::system_file_calls();
    left.libpmem = &libpmem();
    left.options.io_scheme = IoScheme::kPread;
    return left;
  }
  void before_each_call(const std::function<void()>& call) {
    files_.before_each_call(call);
    if (pmem_) pmem_->before_each_call(call);
  }
  void leave_out(const Run& run) {
    files_.leave_out(run.left_out);
    if (pmem_) pmem_->leave_out_drains(run.leaves_out_drains);
  }
  PowerMedium& files() { return files_; }

  TableSite site;

 private:
  std::mt19937_64 random_;
  PowerMedium files_;
  std::optional<PmemMedium> pmem_;
};

Odds odds_of(Rows rows) {
  switch (rows) {
    case Rows::kInPmem: return {.call = 97, .commit = 3, .step = 20};
    case Rows::kInPageCache: return {.call = 4, .commit = 2, .step = 10};
    default: return {.call = 9, .commit = 3, .step = 5};
  }
}

// Runs one table through several lives, each of which ends with a power cut. Before calls on files, at
// random, it also tests what a power cut at that call would leave, in a copy that the table knows nothing of.
void run(const Run& of, Cuts& cuts) {
  constexpr int kLives = 4;
  const int steps = of.rows == Rows::kInFiles ? 150 : 80;
  const TemporaryDirectory directory;
  const TemporaryDirectory other;
  const Odds odds = odds_of(of.rows);
  std::mt19937_64 random(of.seed + 1000);
  std::string root = directory / "0";
  auto machine = std::make_unique<Machine>(of.rows, root, of.seed);
  std::unique_ptr<Workload> workload = make_workload(machine->site, of.seed);
  const auto cut_by_chance = [&](uint64_t one_in) {
    if (random() % one_in != 0) return;
    const TableSite left = machine->cut(other / "left");
    ++cuts.all;
    if (workload->changes_manifests()) ++cuts.in_commits;
    const std::string fault = fault_after_cut(left, workload->certain(), workload->uncertain());
    if (fault.empty()) return;
    ++cuts.faults;
    if (cuts.first_fault.empty()) cuts.first_fault = "seed " + std::to_string(of.seed) + ": " + fault;
  };
  const auto listen = [&] {
    machine->leave_out(of);
    machine->before_each_call(
        [&] { cut_by_chance(workload->changes_manifests() ? odds.commit : odds.call); });
  };
  listen();
  for (int life = 1; life <= kLives; ++life) {
    for (int step = 0; step < steps; ++step) {
      if (of.fails_syncs && random() % 10 == 0) {
        machine->files().fail_sync_after(static_cast<int>(random() % 8));
      }
      try {
        workload->step();
      } catch (const Error& error) {
        // The commit whose sync failed may be repeated.
        check(of.fails_syncs && std::string(error.what()).find("brought to its medium") != std::string::npos,
              error.what());
      }
      cut_by_chance(odds.step);
      // Stops after a fault.
      if (cuts.faults > 0) return machine->before_each_call(nullptr);
    }
    machine->before_each_call(nullptr);
    if (life == kLives) break;
    root = directory / std::to_string(life);
    machine->cut(root);
    workload->end();
    machine.reset();  // only one PmemMedium may exist
    machine = std::make_unique<Machine>(of.rows, root, of.seed * 100 + static_cast<uint64_t>(life));
    workload->restart_at(machine->site);
    listen();
  }
}

void every_checkpoint_survives_a_power_cut(Rows rows, uint64_t seeds, bool fails_syncs) {
  Cuts cuts;
  for (uint64_t seed = 0; seed < seeds && cuts.faults == 0; ++seed) {
    run({.rows = rows, .seed = seed, .fails_syncs = fails_syncs}, cuts);
  }
  check(cuts.faults == 0, cuts.first_fault);
  std::printf("%llu power cuts, %llu of them in commits and drops\n",
              static_cast<unsigned long long>(cuts.all), static_cast<unsigned long long>(cuts.in_commits));
  const uint64_t least = rows == Rows::kInFiles ? 180 : 50;  // for each seed
  check(cuts.all > least * seeds && cuts.in_commits > least / 5 * seeds, "the power hardly ever went");
}
TEST(every_checkpoint_in_persistent_memory_survives_a_power_cut) {
  every_checkpoint_survives_a_power_cut(Rows::kInPmem, scaled_count(10), /*fails_syncs=*/false);
}
TEST(every_checkpoint_in_a_pool_of_the_page_cache_survives_a_power_cut) {
  every_checkpoint_survives_a_power_cut(Rows::kInPageCache, scaled_count(6), /*fails_syncs=*/false);
}
TEST(every_checkpoint_in_a_pool_survives_a_power_cut_where_syncs_fail) {
  every_checkpoint_survives_a_power_cut(Rows::kInPmem, scaled_count(6), /*fails_syncs=*/true);
}
TEST(every_checkpoint_in_files_survives_a_power_cut) {
  every_checkpoint_survives_a_power_cut(Rows::kInFiles, 3, /*fails_syncs=*/false);
}
TEST(every_checkpoint_in_files_survives_a_power_cut_where_syncs_fail) {
  every_checkpoint_survives_a_power_cut(Rows::kInFiles, 3, /*fails_syncs=*/true);
}

// A killed process may have named or removed a manifest without syncing the directory. The next process
// relies on the directory as it finds it, so it must make it durable first.
void the_manifests_that_the_next_process_finds_are_durable(Rows rows, Sync left_out, uint64_t commits,
                                                           uint64_t drops) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    const TemporaryDirectory other;
    Machine machine(rows, directory / "0", seed);
    Accounts certain;
    {
      const std::unique_ptr<Table> table = machine.site.open();
      for (uint64_t number = 1; number <= commits; ++number) {
        table->write(0, 1000, static_cast<int64_t>(number));
        if (number == commits && drops == 0) machine.files().leave_out(left_out);
        table->checkpoint();
        certain[number].versions = table->versions();
      }
      machine.files().leave_out(left_out);
      for (uint64_t number = 1; number <= drops; ++number) {
        table->checkpoints->drop(number);
        certain.erase(number);
      }
    }
    machine.files().leave_out(Sync::kNone);
    const std::unique_ptr<Table> table = machine.site.open();
    table->write(0, 1000, 9);  // if nothing is kept, the files reuse earlier numbers
    for (int cut = 0; cut < 20; ++cut) {
      const std::string fault = fault_after_cut(machine.cut(other / "left"), certain, {});
      check(fault.empty(), fault);
    }
  }
  tested_case().clear();
}
TEST(a_checkpoint_that_the_next_process_finds_survives_a_power_cut) {
  for (const Rows rows : {Rows::kInPmem, Rows::kInFiles}) {
    the_manifests_that_the_next_process_finds_are_durable(rows, Sync::kManifestNamed, /*commits=*/2,
                                                          /*drops=*/0);
  }
}
TEST(a_checkpoint_that_the_next_process_does_not_find_stays_away_after_a_power_cut) {
  for (const Rows rows : {Rows::kInPmem, Rows::kInFiles}) {
    the_manifests_that_the_next_process_finds_are_durable(rows, Sync::kManifestRemoved, /*commits=*/2,
                                                          /*drops=*/2);
  }
}

// Checks that a missing sync is detected. Otherwise the tests above would pass whatever the tier does.
void check_that_faults_show(Run of) {
  Cuts cuts;
  for (; of.seed < 20 && cuts.faults == 0; ++of.seed) run(of, cuts);
  const std::string what = "sync " + std::to_string(static_cast<int>(of.left_out)) + " of rows " +
                           std::to_string(static_cast<int>(of.rows));
  check(cuts.faults > 0, "nobody misses " + what);
  std::printf("%s left out, cut %llu: %s\n", what.c_str(), static_cast<unsigned long long>(cuts.all),
              cuts.first_fault.c_str());
}
TEST(a_missing_sync_is_detected) {
  for (const Sync left_out :
       {Sync::kRecords, Sync::kRecordsWrittenAnew, Sync::kDirectory, Sync::kParentDirectory, Sync::kManifest,
        Sync::kManifestNamed, Sync::kManifestRemoved}) {
    check_that_faults_show({.rows = Rows::kInFiles,
                            .seed = 0,
                            .left_out = left_out,
                            .fails_syncs = left_out == Sync::kRecordsWrittenAnew});
  }
  for (const Sync left_out : {Sync::kManifest, Sync::kManifestNamed, Sync::kManifestRemoved}) {
    check_that_faults_show({.rows = Rows::kInPmem, .seed = 0, .left_out = left_out});
  }
  check_that_faults_show({.rows = Rows::kInPmem, .seed = 0, .leaves_out_drains = true});
}

}  // namespace
}  // namespace embstore::log::testing
