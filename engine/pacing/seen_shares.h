// What the caches before a tier have had of its rows lately: by kind and size of the accesses.
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

// Safe for threads.
class SeenShares {
 public:
  // Null: no caches, and everything misses.
  explicit SeenShares(std::shared_ptr<CacheHierarchy> caches) : caches_(std::move(caches)) {}

  PhaseWatcher::Lines wanted_lines() const;
  // Of each of the counts, by a phase's own lines and those of the phases before it. A phase of a few rows has few
  // lines, or none, in the sample.
  static constexpr size_t kMostCounts = 8;
  using OfCounts = std::array<OutcomeShares, kMostCounts>;
  OfCounts of(std::span<const PhaseCount> counts, std::span<const TouchedLine> lines) EXCLUDES(mutex_);

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
