#include "access/tier_meter.h"

namespace embstore {

std::vector<AccessCount> TierMeter::counts() const {
  std::vector<AccessCount> counts;
  for (size_t access = 0; access < kAccesses; ++access) {
    for (int threads = 1; threads <= kMaxThreads; ++threads) {
      const Cell& cell = cells_[access][cell_of(threads)];
      const uint64_t accesses = cell.accesses.load(std::memory_order_relaxed);
      if (accesses == 0) continue;
      counts.push_back({static_cast<Access>(access), threads, accesses,
                        cell.bytes.load(std::memory_order_relaxed),
                        cell.elapsed_ns.load(std::memory_order_relaxed)});
    }
  }
  return counts;
}

void TierMeter::watch(const void* owner, std::shared_ptr<PhaseWatcher> watcher) {
  const MutexLock lock(watchers_mutex_);
  watchers_.push_back({owner, std::move(watcher)});
  update_wanted_notes();
}

void TierMeter::unwatch(const void* owner) {
  const MutexLock lock(watchers_mutex_);
  std::erase_if(watchers_, [owner](const Watching& watching) { return watching.owner == owner; });
  update_wanted_notes();
}

void TierMeter::update_wanted_notes() {
  Notes wanted = watchers_.empty() ? Notes::kCounts : Notes::kPhases;
  for (const Watching& watching : watchers_) {
    switch (watching.watcher->wanted_lines()) {
      case PhaseWatcher::Lines::kNone: break;
      case PhaseWatcher::Lines::kSampled: wanted = std::max(wanted, Notes::kSampledLines); break;
      case PhaseWatcher::Lines::kAll: wanted = Notes::kAllLines; break;
    }
  }
  wanted_notes_.store(wanted, std::memory_order_release);
}

std::vector<std::shared_ptr<PhaseWatcher>> TierMeter::watchers() const {
  const MutexLock lock(watchers_mutex_);
  std::vector<std::shared_ptr<PhaseWatcher>> watchers;
  for (const Watching& watching : watchers_) watchers.push_back(watching.watcher);
  return watchers;
}

}  // namespace embstore
