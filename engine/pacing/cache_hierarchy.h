// Simulates which of the touched bytes a computer's caches would have, for one line of about 64.
//
// In front of a device lies the CPU's last-level cache, with 16 ways and replacement of the least recently
// used line. There may be a memory, too, that caches the device: direct-mapped and written back, as in
// Optane's memory mode. Both have lines of 64 bytes. Lines are sampled by their set, so that a set is
// simulated as a whole or not at all.
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
  uint64_t cpu_bytes = 0;     // 0: there is none
  uint64_t memory_bytes = 0;  // of a memory in front of the device; 0: there is none
  auto operator<=>(const CacheSizes&) const = default;
  bool any() const { return cpu_bytes != 0 || memory_bytes != 0; }
};

enum class Outcome : uint8_t {
  kMiss,       // not in the CPU's caches; in the memory in front of the device, if there is such a memory
  kFree,       // in the CPU's caches, ready for the access
  kDirtied,    // in the CPU's caches, flushed or unchanged so far: not fetched, but to be written back
  kCleanMiss,  // the memory in front has another line in its place, which needn't be written back
  kDirtyMiss,  // the memory in front has another line in its place, which must be written back first
};
inline constexpr size_t kOutcomes = 5;

using OutcomeCounts = std::array<uint64_t, kOutcomes>;

// The shares of the outcomes of many accesses: all misses until any was seen. Recent accesses count most.
class OutcomeShares {
 public:
  using Values = std::array<double, kOutcomes>;  // by outcome; their sum is 1
  Values values() const;
  // Adds a sample of `expected` lines. Lines that were not seen with another outcome are taken to have had
  // the `usual` one. Otherwise hot lines would count 64 times if they are in the sample, and not at all if
  // they aren't; they have the usual outcome.
  void add(const OutcomeCounts& sampled, double expected, Outcome usual);

 private:
  // Enough that a share is right within a hundredth, few enough that changes show soon.
  static constexpr double kMaxSeen = 8192;

  std::array<double, kOutcomes> counts_{};
  double seen_ = 0;
};

// Thread-safe.
class CacheHierarchy {
 public:
  static constexpr uint64_t kLineBytes = TouchedLine::kBytes;
  static constexpr size_t kCpuWays = 16;

  // Sizes are rounded down to whole sets, and to multiples of 4,096 sets if there are more.
  explicit CacheHierarchy(const CacheSizes& sizes);
  // Returns the hierarchy of these sizes that the tiers of this process share: all of them are in the same
  // computer.
  static std::shared_ptr<CacheHierarchy> shared(const CacheSizes& sizes);

  // Small caches, of fewer than 4,096 sets, need every line.
  bool needs_every_line() const { return classes_ == 1; }

  // Returns the share of lines that are simulated.
  double sampled_share() const {
    return classes_ == 1 ? 1.0 : double{LineClasses::kSampled} / double{LineClasses::kCount};
  }
  // Returns the outcome of accesses to a line that is touched all the time.
  Outcome usual_outcome(Access access) const;

  // Touches the lines in order, except those that aren't simulated, and counts the outcomes for each group.
  void touch(std::span<const TouchedLine> lines, std::span<OutcomeCounts> by_group) EXCLUDES(mutex_);

 private:
  struct Sets {
    Sets(uint64_t sets, uint64_t classes, size_t ways);
    const uint64_t count;
    // Each entry is (line + 1) << 1, with the lowest bit set if the line was changed; 0: empty. The most
    // recent first.
    std::optional<PageArray<uint64_t>> lines;
  };

  static uint64_t sets_of(uint64_t bytes, size_t ways);
  uint64_t* set_of(const Sets& sets, uint64_t line, size_t ways) const;
  Outcome touch(uint64_t line, Access access) REQUIRES(mutex_);
  Outcome touch_memory(uint64_t line, bool writes) REQUIRES(mutex_);

  const uint64_t cpu_sets_;
  const uint64_t memory_sets_;
  const uint64_t classes_;  // LineClasses::kCount; or 1: every line is simulated, without sampling
  Mutex mutex_;
  Sets cpu_ GUARDED_BY(mutex_);
  Sets memory_ GUARDED_BY(mutex_);
};

}  // namespace embstore
