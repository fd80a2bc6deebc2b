// Tests the simulated caches before a device against plain models of them, the tables of devices, and waits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "access/phase.h"
#include "access/tier_meter.h"
#include "pacing/cache_hierarchy.h"
#include "pacing/device.h"
#include "pacing/pacing_debt.h"
#include "pacing/tier_pacer.h"
#include "testing/tests.h"
#include "threads/safe_point.h"

namespace embstore {
namespace {

constexpr uint64_t kLine = CacheHierarchy::kLineBytes;
constexpr Access kAll[] = {Access::kLoad, Access::kUpdate, Access::kStore, Access::kStoreFlushed,
                           Access::kStoreStreamed};

// The caches that the header of CacheHierarchy describes, in the plainest way: every set is a list, the most
// recent line first.
class PlainCaches {
 public:
  explicit PlainCaches(const CacheSizes& sizes)
      : cpu_(sizes.cpu_bytes / kLine / CacheHierarchy::kCpuWays), memory_(sizes.memory_bytes / kLine) {}

  Outcome touch(uint64_t line, Access access) {
    const bool writes = access != Access::kLoad;
    if (cpu_.empty()) return touch_memory(line, writes);
    std::vector<Entry>& set = cpu_[line % cpu_.size()];
    const auto found =
        std::find_if(set.begin(), set.end(), [line](const Entry& entry) { return entry.line == line; });
    const bool was_there = found != set.end();
    const bool was_changed = was_there && found->is_changed;
    if (was_there) set.erase(found);
    if (access == Access::kStoreStreamed) return touch_memory(line, true);
    set.insert(set.begin(), {line, access != Access::kStoreFlushed && (was_changed || writes)});
    if (set.size() > CacheHierarchy::kCpuWays) set.pop_back();
    if (!was_there) return touch_memory(line, writes);
    if (!writes || (was_changed && access != Access::kStoreFlushed)) return Outcome::kFree;
    if (!memory_.empty()) touch_memory(line, true);
    return Outcome::kDirtied;
  }

 private:
  struct Entry {
    uint64_t line;
    bool is_changed;
  };
  Outcome touch_memory(uint64_t line, bool writes) {
    if (memory_.empty()) return Outcome::kMiss;
    std::optional<Entry>& entry = memory_[line % memory_.size()];
    const bool is_hit = entry && entry->line == line;
    const bool was_changed = entry && entry->is_changed;
    entry = {line, writes || (is_hit && was_changed)};
    if (is_hit) return Outcome::kMiss;
    return was_changed ? Outcome::kDirtyMiss : Outcome::kCleanMiss;
  }

  std::vector<std::vector<Entry>> cpu_;
  std::vector<std::optional<Entry>> memory_;
};

struct Touch {
  uint64_t line;
  Access access;
};

// Draws lines with squared random numbers, so that some are hot.
std::vector<Touch> random_touches(uint64_t seed, uint64_t lines, size_t count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<Touch> touches;
  for (size_t i = 0; i < count; ++i) {
    const double u = uniform(random);
    touches.push_back({static_cast<uint64_t>(u * u * static_cast<double>(lines)), kAll[random() % 5]});
  }
  return touches;
}

std::vector<TouchedLine> lines_of(const std::vector<Touch>& touches) {
  std::vector<TouchedLine> lines;
  for (const auto& [line, access] : touches) lines.push_back({line, access, static_cast<uint8_t>(access)});
  return lines;
}

TEST(small_caches_are_simulated_line_by_line) {
  for (const CacheSizes sizes : {CacheSizes{64 << 10, 0}, CacheSizes{0, 100 << 10},
                                 CacheSizes{48 << 10, 200 << 10}, CacheSizes{8 << 20, 100 << 10}}) {
    tested_case() = std::to_string(sizes.cpu_bytes) + ", " + std::to_string(sizes.memory_bytes);
    CacheHierarchy simulated(sizes);
    check(simulated.needs_every_line(), "a small cache wants a sample");
    PlainCaches plain(sizes);
    for (uint64_t seed = 0; seed < scaled_count(3); ++seed) {
      const std::vector<Touch> touches = random_touches(seed, 8192, 100000);
      std::array<OutcomeCounts, kAccesses> counts{};
      std::array<OutcomeCounts, kAccesses> expected{};
      simulated.touch(lines_of(touches), counts);
      for (const auto& [line, access] : touches) {
        ++expected[static_cast<size_t>(access)][static_cast<size_t>(plain.touch(line, access))];
      }
      check(counts == expected, "the simulation differs from the plain model");
    }
  }
}

TEST(large_caches_are_simulated_by_a_sample_of_their_sets) {
  // Sets are in the sample as a whole, so every outcome of its lines is right.
  for (const CacheSizes sizes :
       {CacheSizes{8 << 20, 0}, CacheSizes{0, 4 << 20}, CacheSizes{12 << 20, 64 << 20}}) {
    tested_case() = std::to_string(sizes.cpu_bytes) + ", " + std::to_string(sizes.memory_bytes);
    CacheHierarchy simulated(sizes);
    check(!simulated.needs_every_line(), "a large cache wants every line");
    PlainCaches plain(sizes);
    const std::vector<Touch> touches = random_touches(5, (64 << 20) / kLine, 2000000);
    std::array<OutcomeCounts, kAccesses> counts{};
    std::array<OutcomeCounts, kAccesses> of_sample{};
    simulated.touch(lines_of(touches), counts);
    for (const auto& [line, access] : touches) {
      const auto outcome = static_cast<size_t>(plain.touch(line, access));
      if (LineClasses::is_sampled(line)) ++of_sample[static_cast<size_t>(access)][outcome];
    }
    check(counts == of_sample, "the simulation differs from the plain model in the sample");
  }
}

TEST(shares_of_the_sample_are_those_of_all_lines) {
  for (const CacheSizes sizes :
       {CacheSizes{8 << 20, 0}, CacheSizes{0, 16 << 20}, CacheSizes{12 << 20, 48 << 20}}) {
    tested_case() = std::to_string(sizes.cpu_bytes) + ", " + std::to_string(sizes.memory_bytes);
    CacheHierarchy simulated(sizes);
    PlainCaches plain(sizes);
    std::vector<Touch> touches = random_touches(5, (64 << 20) / kLine, 2000000);
    // As in training: a row that is looked up is then updated.
    for (size_t i = 0; i + 1 < touches.size(); i += 2) {
      touches[i].access = Access::kLoad;
      touches[i + 1] = {touches[i].line, Access::kUpdate};
    }
    std::array<OutcomeCounts, kAccesses> counts{};
    std::array<OutcomeCounts, kAccesses> of_all{};
    simulated.touch(lines_of(touches), counts);
    for (const auto& [line, access] : touches) {
      ++of_all[static_cast<size_t>(access)][static_cast<size_t>(plain.touch(line, access))];
    }
    for (const Access access : {Access::kLoad, Access::kUpdate}) {
      const auto of = static_cast<size_t>(access);
      const double touched = static_cast<double>(touches.size()) / 2;
      OutcomeShares shares;
      shares.add(counts[of], touched * simulated.sampled_share(), simulated.usual_outcome(access));
      for (size_t outcome = 0; outcome < kOutcomes; ++outcome) {
        const double share = shares.values()[outcome];
        const double expected = static_cast<double>(of_all[of][outcome]) / touched;
        check(std::abs(share - expected) < 0.02,
              "a share of the sample is " + std::to_string(share) + ", of all " + std::to_string(expected));
      }
    }
  }
}

TEST(a_hot_line_counts_the_same_inside_and_outside_of_the_sample) {
  // Half of all touches are of one line, which is simulated or not; all other lines are touched once.
  uint64_t hot[2] = {0, 0};
  while (!LineClasses::is_sampled(hot[0])) ++hot[0];
  while (LineClasses::is_sampled(hot[1])) ++hot[1];
  for (const uint64_t line : hot) {
    CacheHierarchy simulated({16 << 20, 0});
    std::vector<TouchedLine> lines;
    for (uint64_t i = 0; i < 200000; ++i) {
      lines.push_back({i % 2 == 0 ? line : 10000 + i, Access::kLoad, 0});
    }
    std::array<OutcomeCounts, 1> counts{};
    simulated.touch(lines, counts);
    OutcomeShares shares;
    shares.add(counts[0], static_cast<double>(lines.size()) * simulated.sampled_share(),
               simulated.usual_outcome(Access::kLoad));
    const double hits = shares.values()[static_cast<size_t>(Outcome::kFree)];
    check(std::abs(hits - 0.5) < 0.01, "hits are " + std::to_string(hits) + " of all");
  }
}

TEST(the_sample_takes_the_same_share_of_lines_at_any_distance) {
  for (const uint64_t distance : {1, 2, 3, 4, 5, 7, 8, 16, 33, 64}) {
    tested_case() = std::to_string(distance);
    uint64_t sampled = 0;
    for (uint64_t i = 0; i < 1 << 16; ++i) sampled += LineClasses::is_sampled(i * distance) ? 1 : 0;
    check(sampled == (1 << 16) / 64, "not one of 64: " + std::to_string(sampled));
  }
}

// Returns a time that encodes its position in the table.
double encoded_time(size_t where, size_t access, uint64_t size, int threads) {
  return static_cast<double>(1 + where) * 1e6 + static_cast<double>(access) * 1e5 +
         static_cast<double>(size) + threads / 100.0;
}

// Less than the time of 64 accesses among many, and more than that of 16.
double encoded_time_alone(size_t access, uint64_t size) {
  return 40e6 + static_cast<double>(access) * 1e5 + static_cast<double>(size);
}

Device example_device(const CacheSizes& caches) {
  const std::vector<uint64_t> sizes = {64, 256, 1024};
  std::vector<double> times;
  for (size_t where = 0; where < Device::kLocations; ++where) {
    for (size_t access = 0; access < kAccesses; ++access) {
      for (const uint64_t size : sizes) {
        for (int threads = 1; threads <= Device::kMaxThreads; ++threads) {
          times.push_back(encoded_time(where, access, size, threads));
        }
      }
    }
  }
  std::vector<double> alone;
  for (size_t access = 0; access < kAccesses; ++access) {
    for (const uint64_t size : sizes) alone.push_back(encoded_time_alone(access, size));
  }
  return Device("example", caches, sizes, times, alone);
}

TEST(times_are_interpolated_in_the_table) {
  const Device device = example_device({});
  const auto is = [](double a, double b) { return std::abs(a - b) < 1e-6 * b; };
  using Location = Device::Location;
  check(is(device.time_ns(Location::kThere, Access::kLoad, 64, 1), encoded_time(0, 0, 64, 1)),
        "another time than the table's");
  check(is(device.time_ns(Location::kDirtyMiss, Access::kFileWrite, 1024, 64), encoded_time(2, 6, 1024, 64)),
        "the last one");
  check(is(device.time_ns(Location::kThere, Access::kUpdate, 100, 3), encoded_time(0, 1, 100, 3)),
        "between two sizes");
  check(is(device.time_ns(Location::kThere, Access::kUpdate, 8, 3), encoded_time(0, 1, 64, 3)),
        "below the first");
  check(is(device.time_ns(Location::kThere, Access::kUpdate, 4096, 3), 4 * encoded_time(0, 1, 1024, 3)),
        "beyond the last");
  check(is(device.time_ns(Location::kThere, Access::kUpdate, 64, 100), encoded_time(0, 1, 64, 64)),
        "more threads than 64");
  check(is(device.alone_ns(Access::kFileRead, 100), encoded_time_alone(5, 100)), "alone, between two sizes");
  OutcomeShares shares;
  shares.add({10, 50, 20, 15, 5}, 100, Outcome::kFree);
  const double expected = 0.1 * encoded_time(0, 1, 256, 2) +
                          0.2 * (encoded_time(0, 1, 256, 2) - encoded_time(0, 0, 256, 2)) +
                          0.15 * encoded_time(1, 1, 256, 2) + 0.05 * encoded_time(2, 1, 256, 2);
  check(is(device.phase_ns({Access::kUpdate, 2, 100, 25600, 0}, shares.values()), 100 * expected),
        "by what the caches had");
}

TEST(a_phase_takes_no_less_than_one_access_alone_in_each_round) {
  const Device device = example_device({});
  const OutcomeShares::Values all_miss = OutcomeShares().values();
  const double one = encoded_time(0, 5, 256, 1);
  const double alone = encoded_time_alone(5, 256);
  for (const uint64_t accesses : {1, 2, 16, 39, 40, 64, 200}) {
    for (const uint64_t rounds : {uint64_t{1}, uint64_t{2}, accesses}) {
      if (rounds > accesses) continue;
      tested_case() = std::to_string(accesses) + " in " + std::to_string(rounds);
      const double expected =
          std::max(static_cast<double>(accesses) * one, static_cast<double>(rounds) * alone);
      const double took =
          device.phase_ns({Access::kFileRead, 1, accesses, accesses * 256, 0, rounds}, all_miss);
      check(std::abs(took - expected) < 1e-6 * expected, "it takes " + std::to_string(took));
    }
  }
  // The phase doesn't wait for hits, nor for lines that are written back.
  const double hit_or_dirtied = device.phase_ns({Access::kLoad, 1, 10, 640, 0}, {0, 0.5, 0.5, 0, 0});
  check(hit_or_dirtied < 1, "hits take " + std::to_string(hit_or_dirtied));
  const double half_missed = device.phase_ns({Access::kLoad, 1, 1, 64, 0}, {0.25, 0.5, 0, 0.25, 0});
  check(std::abs(half_missed - 0.5 * encoded_time_alone(0, 64)) < 1,
        "half a miss takes " + std::to_string(half_missed));
}

// A device on which every access takes 1 us.
std::shared_ptr<const Device> microsecond_device() {
  return std::make_shared<Device>(
      "a microsecond", CacheSizes{}, std::vector<uint64_t>{64},
      std::vector<double>(Device::kLocations * kAccesses * Device::kMaxThreads, 1000.0),
      std::vector<double>(kAccesses, 1000.0));
}

TEST(a_thread_waits_for_the_time_by_which_a_phase_was_faster_than_its_device) {
  TierMeter meter;
  const auto pacer = std::make_shared<TierPacer>(microsecond_device());
  meter.set_medium(pacer->medium());
  meter.watch(&meter, pacer);
  const auto timed = [&](int phases, uint64_t accesses) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < phases; ++i) {
      {
        Phase phase(meter);
        phase.count(Access::kLoad, accesses, 64);
      }
      safe_point();
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  };
  // Each phase is too short to sleep for: the time is carried over, except for the last 0.2 ms.
  const double short_ms = timed(3000, 10);
  check(short_ms >= 29.5, "phases of 10 us took " + std::to_string(short_ms) + " ms");
  // If the first phases waited too long, as on a busy computer, the next ones wait less.
  const double all_ms = short_ms + timed(3, 10000);
  check(all_ms >= 58.5, "phases of 10 us and of 10 ms took " + std::to_string(all_ms) + " ms");
  {
    const PacingSuspension off;
    check(timed(1, 1000000) < 500, "a thread waited that was told not to");
  }
  const auto began = std::chrono::steady_clock::now();
  safe_point();
  check(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(900), "it never waited");
  meter.unwatch(&meter);
  check(timed(1, 1000000) < 500, "a meter that isn't watched is paced");
}

}  // namespace
}  // namespace embstore
