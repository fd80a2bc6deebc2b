// The shares of the outcomes that a tier's accesses had lately in the caches before it, by kind and size of
// access.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "access/phase_watcher.h"
#include "pacing/cache_hierarchy.h"
#include "threads/mutex.h"

namespace embstore {

// Thread-safe.
class SeenShares {
 public:
  // `caches`: null: there are none, and everything misses.
  explicit SeenShares(std::shared_ptr<CacheHierarchy> caches) : caches_(std::move(caches)) {}

  PhaseWatcher::Lines wanted_lines() const;
  // Returns the shares for each of the counts, from the phase's own lines and those of earlier phases: a
  // phase of a few rows has few lines in the sample, or none.
  static constexpr size_t kMaxCounts = 8;
  using CountShares = std::array<OutcomeShares, kMaxCounts>;
  CountShares shares_of(std::span<const PhaseCount> counts, std::span<const TouchedLine> lines)
      EXCLUDES(mutex_);

 private:
  struct Seen {
    Access access;
    uint64_t size_bytes;
    OutcomeShares shares;
  };

  const std::shared_ptr<CacheHierarchy> caches_;
  Mutex mutex_;
  std::vector<Seen> seen_ GUARDED_BY(mutex_);  // few: rows of a tier have two or three sizes
};

}  // namespace embstore
