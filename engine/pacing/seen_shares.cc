#include "pacing/seen_shares.h"

#include <algorithm>

namespace embstore {

PhaseWatcher::Lines SeenShares::wanted_lines() const {
  if (caches_ == nullptr) return PhaseWatcher::Lines::kNone;
  return caches_->needs_every_line() ? PhaseWatcher::Lines::kAll : PhaseWatcher::Lines::kSampled;
}

SeenShares::CountShares SeenShares::shares_of(std::span<const PhaseCount> counts,
                                              std::span<const TouchedLine> lines) {
  CountShares shares;
  if (caches_ == nullptr) return shares;
  std::array<OutcomeCounts, kMaxCounts> outcomes{};
  caches_->touch(lines, outcomes);
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < counts.size(); ++i) {
    const uint64_t size = counts[i].bytes / counts[i].accesses;
    auto seen = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& known) {
      return known.access == counts[i].access && known.size_bytes == size;
    });
    if (seen == seen_.end()) {
      seen_.push_back({counts[i].access, size, {}});
      seen = seen_.end() - 1;
    }
    if (counts[i].touched_lines != 0) {
      seen->shares.add(outcomes[i], static_cast<double>(counts[i].touched_lines) * caches_->sampled_share(),
                       caches_->usual_outcome(counts[i].access));
    }
    shares[i] = seen->shares;
  }
  return shares;
}

}  // namespace embstore
