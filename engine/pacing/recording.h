// Records the phases of some tables, for predictions of how long they would have taken on other devices.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "access/phase_watcher.h"
#include "pacing/cache_hierarchy.h"
#include "threads/mutex.h"

namespace embstore {

struct RecordedPhase {
  int32_t variable;
  int32_t tier;
  AccessCount count;
  int64_t thread;    // the system's thread id
  int64_t start_ns;  // since the recording was made
};

// Thread-safe.
class Recording : public std::enable_shared_from_this<Recording> {
 public:
  // Simulates caches of these sizes, all tables being in one computer. Keeps at most `max_phases` phases.
  Recording(const std::vector<CacheSizes>& caches, uint64_t max_phases);

  // Returns the time since the recording was made.
  int64_t elapsed_ns() const { return ns_at(std::chrono::steady_clock::now()); }
  // Returns a watcher that records a tier's phases.
  std::shared_ptr<PhaseWatcher> watcher(int32_t variable, int32_t tier);
  // Stops recording.
  void stop() EXCLUDES(mutex_);

  static constexpr size_t kRecorded = kOutcomes - 1;  // all but misses
  using Outcomes = std::array<double, kRecorded>;     // accesses by outcome, from kFree on
  struct Phases {
    std::vector<RecordedPhase> phases;
    std::vector<Outcomes> outcomes;  // for each phase in turn, one per cache hierarchy
    uint64_t lost;                   // phases that could not be kept
  };
  Phases phases() const EXCLUDES(mutex_);

 private:
  class TierRecorder;
  int64_t ns_at(std::chrono::steady_clock::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - made_).count();
  }
  void add(const RecordedPhase& phase, std::span<const Outcomes> outcomes) noexcept EXCLUDES(mutex_);
  void lose(uint64_t phases) noexcept EXCLUDES(mutex_);

  const std::chrono::steady_clock::time_point made_;
  const uint64_t max_phases_;
  std::vector<std::shared_ptr<CacheHierarchy>> caches_;
  mutable Mutex mutex_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  Phases phases_ GUARDED_BY(mutex_){};
};

}  // namespace embstore
