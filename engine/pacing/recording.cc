#include "pacing/recording.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <new>

#include "pacing/seen_shares.h"

namespace embstore {

class Recording::TierRecorder final : public PhaseWatcher {
 public:
  TierRecorder(std::shared_ptr<Recording> recording, int32_t variable, int32_t tier)
      : recording_(std::move(recording)), variable_(variable), tier_(tier) {
    for (const auto& caches : recording_->caches_) shares_.emplace_back(caches);
  }

  Lines wanted_lines() const override {
    Lines wanted = Lines::kNone;
    for (const SeenShares& shares : shares_) wanted = std::max(wanted, shares.wanted_lines());
    return wanted;
  }
  void phase_ended(std::chrono::steady_clock::time_point began, std::span<const PhaseCount> counts,
                   std::span<const TouchedLine> lines) noexcept override {
    const int64_t start_ns = recording_->ns_at(began);
    try {
      std::vector<SeenShares::CountShares> seen;
      seen.reserve(shares_.size());
      for (SeenShares& shares : shares_) seen.push_back(shares.shares_of(counts, lines));
      std::vector<Outcomes> outcomes(shares_.size());
      for (size_t i = 0; i < counts.size(); ++i) {
        for (size_t c = 0; c < shares_.size(); ++c) {
          const OutcomeShares::Values shares = seen[c][i].values();
          for (size_t o = 0; o < kRecorded; ++o) {
            outcomes[c][o] = shares[o + 1] * static_cast<double>(counts[i].accesses);
          }
        }
        recording_->add({variable_, tier_, counts[i], gettid(), start_ns}, outcomes);
      }
    } catch (const std::bad_alloc&) {
      recording_->lose(counts.size());
    }
  }

 private:
  const std::shared_ptr<Recording> recording_;
  const int32_t variable_;
  const int32_t tier_;
  std::deque<SeenShares> shares_;  // one for each of the recording's caches
};

Recording::Recording(const std::vector<CacheSizes>& caches, uint64_t max_phases)
    : made_(std::chrono::steady_clock::now()), max_phases_(max_phases) {
  for (const CacheSizes& sizes : caches) caches_.push_back(std::make_shared<CacheHierarchy>(sizes));
}

std::shared_ptr<PhaseWatcher> Recording::watcher(int32_t variable, int32_t tier) {
  return std::make_shared<TierRecorder>(shared_from_this(), variable, tier);
}

void Recording::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
}

Recording::Phases Recording::phases() const {
  const MutexLock lock(mutex_);
  return phases_;
}

void Recording::add(const RecordedPhase& phase, std::span<const Outcomes> outcomes) noexcept {
  const MutexLock lock(mutex_);
  if (stopped_) return;
  if (phases_.phases.size() >= max_phases_) {
    ++phases_.lost;
    return;
  }
  const size_t outcomes_before = phases_.outcomes.size();
  try {
    phases_.outcomes.insert(phases_.outcomes.end(), outcomes.begin(), outcomes.end());
    phases_.phases.push_back(phase);
  } catch (const std::bad_alloc&) {
    phases_.outcomes.resize(outcomes_before);
    ++phases_.lost;
  }
}

void Recording::lose(uint64_t phases) noexcept {
  const MutexLock lock(mutex_);
  if (!stopped_) phases_.lost += phases;
}

}  // namespace embstore
