// Counts how the rows of one tier are touched: a phase at a time, which is what one call does there with a batch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "access/access.h"
#include "access/access_count.h"
#include "access/phase_watcher.h"
#include "access/shared_medium.h"
#include "threads/mutex.h"

namespace embstore {

// Safe for threads.
class TierMeter {
 public:
  static constexpr int kMostThreads = 64;

  TierMeter() : medium_(std::make_shared<SharedMedium>()) {}

  // The tier's rows lie there, with those of others. REQUIRES: no phase is under way.
  void lies_on(std::shared_ptr<SharedMedium> medium) { medium_ = std::move(medium); }
  const std::shared_ptr<SharedMedium>& medium() const { return medium_; }

  // Since the tier was made; those that there are.
  std::vector<AccessCount> counts() const;
  void add(const AccessCount& count) {
    Cell& cell = cells_[static_cast<size_t>(count.access)][cell_of(count.threads)];
    cell.accesses.fetch_add(count.accesses, std::memory_order_relaxed);
    cell.bytes.fetch_add(count.bytes, std::memory_order_relaxed);
    cell.elapsed_ns.fetch_add(count.elapsed_ns, std::memory_order_relaxed);
  }

  // Phases that begin from now on are told to the watcher, which `owner` is known by.
  void watch(const void* owner, std::shared_ptr<PhaseWatcher> watcher) EXCLUDES(watchers_mutex_);
  // Those that are under way may still be told.
  void unwatch(const void* owner) EXCLUDES(watchers_mutex_);

  // What phases are to note: nothing more than counts, most of the time.
  enum class Notes : uint8_t { kCounts, kPhases, kSampledLines, kAllLines };
  Notes wanted_notes() const { return wanted_notes_.load(std::memory_order_acquire); }
  std::vector<std::shared_ptr<PhaseWatcher>> watchers() const EXCLUDES(watchers_mutex_);

 private:
  struct Cell {
    std::atomic<uint64_t> accesses{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> elapsed_ns{0};
  };
  struct Watching {
    const void* owner;
    std::shared_ptr<PhaseWatcher> watcher;
  };
  static size_t cell_of(int threads) { return static_cast<size_t>(std::clamp(threads, 1, kMostThreads) - 1); }
  void note_wanted() REQUIRES(watchers_mutex_);

  std::shared_ptr<SharedMedium> medium_;
  std::array<std::array<Cell, kMostThreads>, kAccesses> cells_;
  std::atomic<Notes> wanted_notes_{Notes::kCounts};
  mutable Mutex watchers_mutex_;
  std::vector<Watching> watchers_ GUARDED_BY(watchers_mutex_);
};

}  // namespace embstore
