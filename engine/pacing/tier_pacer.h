// Makes the phases of a tier take as long as on a device: the thread owes the time by which they
// were shorter.
#pragma once

#include <memory>
#include <utility>

#include "access/phase_watcher.h"
#include "access/shared_medium.h"
#include "pacing/device.h"
#include "pacing/seen_shares.h"

namespace embstore {

// The thread waits for what it owes in pay_pacing_debt().
class TierPacer final : public PhaseWatcher {
 public:
  explicit TierPacer(std::shared_ptr<const Device> device)
      : device_(std::move(device)),
        medium_(SharedMedium::named("device " + device_->name())),
        shares_(device_->caches().any() ? CacheHierarchy::shared(device_->caches()) : nullptr) {}

  // The medium that the tier's meter must lie on: all tiers on a device of this name share it.
  const std::shared_ptr<SharedMedium>& medium() const { return medium_; }

  Lines wanted_lines() const override { return shares_.wanted_lines(); }
  void phase_ended(std::chrono::steady_clock::time_point began, std::span<const PhaseCount> counts,
                   std::span<const TouchedLine> lines) noexcept override;

 private:
  const std::shared_ptr<const Device> device_;
  const std::shared_ptr<SharedMedium> medium_;
  SeenShares shares_;
};

}  // namespace embstore
