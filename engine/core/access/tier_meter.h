// Counts accesses to the rows of one tier, phase by phase. A phase is the work of one call on a batch.
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

// Thread-safe.
class TierMeter {
 public:
  static constexpr int kMaxThreads = 64;

  TierMeter() : medium_(std::make_shared<SharedMedium>()) {}

  // Sets the medium of the tier's rows, which other tiers may share. REQUIRES: no phase is under way.
  void set_medium(std::shared_ptr<SharedMedium> medium) { medium_ = std::move(medium); }
  const std::shared_ptr<SharedMedium>& medium() const { return medium_; }

  // Returns the counts since the tier was made, without zeros.
  std::vector<AccessCount> counts() const;
  void add(const AccessCount& count) {
    Cell& cell = cells_[static_cast<size_t>(count.access)][cell_of(count.threads)];
    cell.accesses.fetch_add(count.accesses, std::memory_order_relaxed);
    cell.bytes.fetch_add(count.bytes, std::memory_order_relaxed);
    cell.elapsed_ns.fetch_add(count.elapsed_ns, std::memory_order_relaxed);
  }

  // Tells the watcher of phases that begin from now on, until unwatch(owner).
  void watch(const void* owner, std::shared_ptr<PhaseWatcher> watcher) EXCLUDES(watchers_mutex_);
  // Removes the watchers of `owner`. Phases that are under way may still be told to them.
  void unwatch(const void* owner) EXCLUDES(watchers_mutex_);

  // The details that phases have to note: mostly counts alone.
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
  static size_t cell_of(int threads) { return static_cast<size_t>(std::clamp(threads, 1, kMaxThreads) - 1); }
  void update_wanted_notes() REQUIRES(watchers_mutex_);

  std::shared_ptr<SharedMedium> medium_;
  std::array<std::array<Cell, kMaxThreads>, kAccesses> cells_;
  std::atomic<Notes> wanted_notes_{Notes::kCounts};
  mutable Mutex watchers_mutex_;
  std::vector<Watching> watchers_ GUARDED_BY(watchers_mutex_);
};

}  // namespace embstore
