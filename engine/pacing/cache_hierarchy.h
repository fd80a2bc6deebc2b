// Which of the bytes that are touched a computer's caches would have: simulated, one line of about 64.
//
// Before a device lie the CPU's last-level cache, 16 ways with the least recent line replaced, and where there is one a
// memory that caches the device: direct-mapped, written back, as in Optane's memory mode. Both have lines of 64 bytes.
// Lines are sampled by their set, so that a set is simulated whole or not at all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "access/access.h"
#include "access/phase_watcher.h"
#include "memory/huge_pages.h"
#include "threads/mutex.h"

namespace embstore {

struct CacheSizes {
  uint64_t cpu_bytes = 0;     // 0: there's none
  uint64_t memory_bytes = 0;  // of a memory in front of the device; 0: there's none
  auto operator<=>(const CacheSizes&) const = default;
  bool any() const { return cpu_bytes != 0 || memory_bytes != 0; }
};

enum class Outcome : uint8_t {
  kMiss,       // the CPU's caches don't have it; a memory in front of the device does, or there is no such
  kFree,       // the CPU's caches have it as it's wanted
  kDirtied,    // they have it as the memory has it: nothing is fetched, but it must be written back
  kCleanMiss,  // the memory in front has another line there, as the device has it
  kDirtyMiss,  // or one that must be written back first
};
inline constexpr size_t kOutcomes = 5;

using OutcomeCounts = std::array<uint64_t, kOutcomes>;

// Of many accesses, how many came out how; all misses until any was seen. What came last counts most.
class OutcomeShares {
 public:
  using Values = std::array<double, kOutcomes>;  // by outcome; their sum is 1
  Values values() const;
  // Of a sample of `expected` lines; as many as were not seen as another outcome came out as the `usual` one. Hot lines
  // would be taken for 64 times as many where they are in the sample, and for none where they aren't; they come out
  // as usual.
  void add(const OutcomeCounts& sampled, double expected, Outcome usual);

 private:
  // Enough that a share is right within a hundredth, few enough that changes show soon.
  static constexpr double kMostSeen = 8192;

  std::array<double, kOutcomes> counts_{};
  double seen_ = 0;
};

// Safe for threads.
class CacheHierarchy {
 public:
  static constexpr uint64_t kLineBytes = TouchedLine::kBytes;
  static constexpr size_t kCpuWays = 16;

  // Sizes are rounded down to whole sets, and to 4,096 of them where there are more.
  explicit CacheHierarchy(const CacheSizes& sizes);
  // The one of these sizes that tiers of this process have before them: they are all the same computer's.
  static std::shared_ptr<CacheHierarchy> shared(const CacheSizes& sizes);

  // Small caches, of less than 4,096 sets, want every line.
  bool wants_every_line() const { return classes_ == 1; }

  // How many of the lines are simulated.
  double sampled_share() const {
    return classes_ == 1 ? 1.0 : double{LineClasses::kSampled} / double{LineClasses::kCount};
  }
  // How accesses to a line come out that is touched all the time.
  Outcome usual_outcome(Access access) const;

  // Touches the lines, in order, those that aren't wanted being passed over, and counts for each group.
  void touch(std::span<const TouchedLine> lines, std::span<OutcomeCounts> by_group) EXCLUDES(mutex_);

 private:
  struct Sets {
    Sets(uint64_t sets, uint64_t classes, size_t ways);
    const uint64_t count;
    // Lines + 1, shifted by the bit that says that it was changed; 0: nothing. The most recent first.
    std::optional<PageArray<uint64_t>> lines;
  };

  static uint64_t sets_of(uint64_t bytes, size_t ways);
  uint64_t* set_of(const Sets& sets, uint64_t line, size_t ways) const;
  Outcome touch(uint64_t line, Access access) REQUIRES(mutex_);
  Outcome touch_memory(uint64_t line, bool writes) REQUIRES(mutex_);

  const uint64_t cpu_sets_;
  const uint64_t memory_sets_;
  const uint64_t classes_;  // of lines, LineClasses::kCount; or 1: every line is simulated
  Mutex mutex_;
  Sets cpu_ GUARDED_BY(mutex_);
  Sets memory_ GUARDED_BY(mutex_);
};

}  // namespace embstore
