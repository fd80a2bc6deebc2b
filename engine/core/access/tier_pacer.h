// Lets the phases of a tier take as long as on a device: what they took less is owed by the thread.
#pragma once

#include <memory>
#include <utility>

#include "access/device.h"
#include "access/seen_shares.h"
#include "access/shared_medium.h"
#include "access/tier_meter.h"

namespace embstore {

// What is owed is waited for by wait_as_owed().
class TierPacer final : public PhaseWatcher {
 public:
  TierPacer(std::shared_ptr<const Device> device, std::shared_ptr<SharedMedium> medium)
      : device_(std::move(device)),
        medium_(std::move(medium)),
        shares_(device_->caches().any() ? CacheHierarchy::shared(device_->caches()) : nullptr) {}

  Lines wanted_lines() const override { return shares_.wanted_lines(); }
  void phase_ended(std::chrono::steady_clock::time_point began, std::span<const PhaseCount> counts,
                   std::span<const TouchedLine> lines) noexcept override;

 private:
  const std::shared_ptr<const Device> device_;
  const std::shared_ptr<SharedMedium> medium_;
  SeenShares shares_;
};

}  // namespace embstore
