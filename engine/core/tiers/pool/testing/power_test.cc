// The power goes at any moment: what is left has every checkpoint that was durable, whole.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "medium.h"
#include "workload.h"

namespace embstore::pool::testing {
namespace {

// What somebody finds who opens the files that a power cut left.
void expect_after_cut(const std::string& path, const Workload& workload) {
  PoolTier tier(path, Workload::layout(), identity(), workload.size_bytes());
  auto found = tier.checkpoints();
  for (const auto& [number, checkpoint] : workload.kept()) {
    const bool is_there = std::any_of(found.begin(), found.end(),
                                      [n = number](const PoolCheckpoint& one) { return one.number == n; });
    check(is_there, "checkpoint " + std::to_string(number) + ", which was durable, is lost");
  }
  // The newest first: restoring one ends the newer ones.
  for (; !found.empty(); found.pop_back()) {
    const uint64_t number = found.back().number;
    const auto& of = workload.kept().contains(number) ? workload.kept() : workload.uncertain();
    check(of.contains(number), "checkpoint " + std::to_string(number) + " came from nowhere");
    std::vector<Place> places;
    Versions versions;
    tier.restore(number, 1, [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
      for (size_t i = 0; i < slots.size(); ++i) {
        places.push_back({headers[i].key, slots[i]});
        check(versions.emplace(headers[i].key, headers[i].version).second, "a key has two rows");
      }
    });
    check(versions == of.at(number).versions, "checkpoint " + std::to_string(number) + " has other rows");
    RowBatch rows(Workload::layout());
    tier.read(places, rows);
    for (size_t i = 0; i < places.size(); ++i) checked_version(rows, i, places[i].key);
    tier.erase(places);
  }
}

// A process is killed, the next one goes on from what it finds, and then the power goes.
void expect_after_kill_and_cut(Medium& medium, const std::string& directory, const Workload& workload,
                               std::mt19937_64& random) {
  const TemporaryDirectory killed;
  const TemporaryDirectory left;
  medium.kill(directory, killed.path());
  Versions versions;
  uint64_t number = 0;
  {
    PoolTier tier(killed / "var", Workload::layout(), identity(), workload.size_bytes(), medium.calls());
    const auto found = tier.checkpoints();
    if (found.empty()) return;
    number = found.back().number;
    tier.restore(number, 1, [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
      for (size_t i = 0; i < slots.size(); ++i) versions.emplace(headers[i].key, headers[i].version);
    });
    // It relies on that one alone, and writes over the others' rows.
    for (const PoolCheckpoint& checkpoint : found) {
      if (checkpoint.number != number) tier.drop_checkpoint(checkpoint.number);
    }
    RowBatch rows(Workload::layout());
    rows.resize(std::min<uint64_t>(tier.free_slots(), 1500));
    for (size_t i = 0; i < rows.size(); ++i) fill_row(rows, i, 1000000 + static_cast<int64_t>(i), 1);
    std::vector<Slot> slots(rows.size());
    tier.write(rows, slots);
    medium.cut(killed.path(), left.path(), random() % 101, random);
  }
  PoolTier tier(left / "var", Workload::layout(), identity(), workload.size_bytes());
  const auto found = tier.checkpoints();
  check(found.size() == 1 && found[0].number == number,
        "what the process after a killed one relied on wasn't durable");
  Versions restored;
  tier.restore(number, 1, [&](std::span<const RowHeader> headers, std::span<const Slot>) {
    for (const RowHeader& header : headers) restored.emplace(header.key, header.version);
  });
  check(restored == versions, "a checkpoint that was relied on has other rows");
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
    Medium medium(is_pmem);
    Workload workload(directory / "var", seed, medium.calls());
    const auto cut_by_chance = [&](uint64_t one_in) {
      if (random() % one_in != 0) return;
      tested_case() = "seed " + std::to_string(seed) + ", cut " + std::to_string(cuts);
      try {
        if (is_pmem && random() % 4 == 0) {
          expect_after_kill_and_cut(medium, directory.path(), workload, random);
        } else {
          // From hardly anything to nearly everything.
          medium.cut(directory.path(), left.path(), random() % 101, random);
          expect_after_cut(left / "var", workload);
        }
      } catch (const Error& error) {
        fail(error.what());
      }
      ++cuts;
      if (!workload.uncertain().empty()) ++in_commits;
    };
    medium.before_each_call([&] { cut_by_chance(workload.uncertain().empty() ? odds.call : odds.commit); });
    for (int step = 1; step <= kSteps; ++step) {
      workload.step();
      cut_by_chance(odds.step);
      if (step % 60 == 0) workload.restart();
    }
    medium.before_each_call(nullptr);
  }
  tested_case().clear();
  check(cuts > seeds * 50 && in_commits > seeds * 10, "the power hardly ever went");
  std::printf("%llu power cuts, %llu of them in commits and drops\n", static_cast<unsigned long long>(cuts),
              static_cast<unsigned long long>(in_commits));
}

void every_durable_checkpoint_survives_a_power_cut_of_persistent_memory() {
  every_durable_checkpoint_survives_a_power_cut(/*is_pmem=*/true, scenes(10),
                                                {.call = 97, .commit = 3, .step = 20});
}
void every_durable_checkpoint_survives_a_power_cut_of_the_page_cache() {
  every_durable_checkpoint_survives_a_power_cut(/*is_pmem=*/false, scenes(6),
                                                {.call = 2, .commit = 2, .step = 10});
}

// What a killed process stored and didn't drain can be read by the next, which mustn't take it for durable.
void a_bitmap_that_a_killed_process_left_is_written_again() {
  const TemporaryDirectory directory;
  const TemporaryDirectory killed;
  const TemporaryDirectory left;
  const RowLayout& layout = Workload::layout();
  std::mt19937_64 random(1);
  Medium medium(/*is_pmem=*/true);
  Pool pool(directory / "var", layout, 5000, medium.calls());
  pool.write(keys_from(0, 100), 1);
  pool.checkpoint(1);
  pool.write(keys_from(100, 100), 1);
  pool.tier->begin_checkpoint(2);
  medium.take_notes();
  bool is_killed = false;
  medium.before_each_call([&] {
    // When the bitmap and the entry are written, and not drained.
    if (is_killed || medium.notes_so_far() < 3) return;
    medium.kill(directory.path(), killed.path());
    is_killed = true;
  });
  pool.tier->commit_checkpoint(2, id_of(2));
  medium.before_each_call(nullptr);
  check(is_killed, "nothing was killed");

  Pool next(killed / "var", layout, 5000, medium.calls());
  next.restore(1);
  next.write(keys_from(100, 100), 2);  // the same slots, so the same bitmap
  next.checkpoint(2);
  medium.cut(killed.path(), left.path(), 0, random);
  Pool last(left / "var", layout, 5000);
  last.restore(2);
  check(last.index == next.index, "other rows came back");
}

constexpr Test kTests[] = {
    {"a_bitmap_that_a_killed_process_left_is_written_again",
     a_bitmap_that_a_killed_process_left_is_written_again},
    {"every_durable_checkpoint_survives_a_power_cut_of_persistent_memory",
     every_durable_checkpoint_survives_a_power_cut_of_persistent_memory},
    {"every_durable_checkpoint_survives_a_power_cut_of_the_page_cache",
     every_durable_checkpoint_survives_a_power_cut_of_the_page_cache},
};

}  // namespace

std::span<const Test> power_tests() { return kTests; }

}  // namespace embstore::pool::testing
