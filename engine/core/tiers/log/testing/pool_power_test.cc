// The power goes at any moment: what is left has every checkpoint that was durable, whole.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "pool_workload.h"
#include "tiers/medium/testing/pmem_medium.h"
#include "tiers/medium/testing/power_medium.h"

namespace embstore::log::testing {
namespace {

using medium::testing::PmemMedium;
using medium::testing::PowerMedium;

// What a process finds that opens the files which a power cut left.
void expect_after_cut(const std::string& path, const PoolWorkload& workload) {
  Pool pool(path, PoolWorkload::layout(), workload.slots());
  auto found = pool.checkpoints->kept();
  for (const auto& [number, checkpoint] : workload.kept()) {
    const bool is_there = std::any_of(found.begin(), found.end(),
                                      [n = number](const KeptCheckpoint& one) { return one.number == n; });
    check(is_there, "checkpoint " + std::to_string(number) + ", which was durable, is lost");
  }
  // The newest first: restoring one ends the newer ones.
  for (; !found.empty(); found.pop_back()) {
    const uint64_t number = found.back().number;
    const auto& of = workload.kept().contains(number) ? workload.kept() : workload.uncertain();
    check(of.contains(number), "checkpoint " + std::to_string(number) + " came from nowhere");
    pool.restore(number, 1);
    check(versions_of(pool.index) == of.at(number).versions,
          "checkpoint " + std::to_string(number) + " has other rows");
    pool.check_all();
    std::vector<int64_t> keys;
    for (const auto& [key, entry] : pool.index) keys.push_back(key);
    pool.erase(keys);
  }
}

// How seldom the power goes at a call; in commits and drops, which are few calls, and matter most; and between calls.
struct Odds {
  uint64_t call;
  uint64_t commit;
  uint64_t step;
};

void every_durable_checkpoint_survives_a_power_cut(bool is_pmem, uint64_t seeds, const Odds& odds) {
  constexpr int kSteps = 400;
  uint64_t cuts = 0;
  uint64_t in_commits = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const TemporaryDirectory directory;
    const TemporaryDirectory left;
    std::mt19937_64 random(seed + 1000);
    PmemMedium medium(is_pmem);
    PowerMedium files(directory.path(), seed);
    const std::string place = directory / "manifests";  // as that medium calls it
    const std::string left_place = left / "manifests";
    std::filesystem::create_directory(place);
    PoolWorkload workload(place + "/var", seed, medium.calls(), files);
    const auto cut_by_chance = [&](uint64_t one_in) {
      if (random() % one_in != 0) return;
      tested_case() = "seed " + std::to_string(seed) + ", cut " + std::to_string(cuts);
      try {
        files.cut(left.path());
        std::filesystem::create_directories(left_place);
        // From hardly anything to nearly everything.
        medium.cut(place, left_place, random() % 101, random);
        expect_after_cut(left_place + "/var", workload);
      } catch (const Error& error) {
        fail(error.what());
      }
      ++cuts;
      if (!workload.uncertain().empty()) ++in_commits;
    };
    const auto before_call = [&] { cut_by_chance(workload.uncertain().empty() ? odds.call : odds.commit); };
    medium.before_each_call(before_call);
    files.before_each_call(before_call);
    for (int step = 1; step <= kSteps; ++step) {
      workload.step();
      cut_by_chance(odds.step);
      if (step % 60 == 0) workload.restart();
    }
    medium.before_each_call(nullptr);
    files.before_each_call(nullptr);
  }
  tested_case().clear();
  check(cuts > seeds * 50 && in_commits > seeds * 10, "the power hardly ever went");
  std::printf("%llu power cuts, %llu of them in commits and drops\n", static_cast<unsigned long long>(cuts),
              static_cast<unsigned long long>(in_commits));
}

TEST(every_durable_checkpoint_survives_a_power_cut_of_persistent_memory) {
  every_durable_checkpoint_survives_a_power_cut(/*is_pmem=*/true, scenes(10),
                                                {.call = 97, .commit = 3, .step = 20});
}
TEST(every_durable_checkpoint_survives_a_power_cut_of_the_page_cache) {
  every_durable_checkpoint_survives_a_power_cut(/*is_pmem=*/false, scenes(6),
                                                {.call = 2, .commit = 2, .step = 10});
}

}  // namespace

}  // namespace embstore::log::testing
