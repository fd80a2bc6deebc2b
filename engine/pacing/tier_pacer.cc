#include "pacing/tier_pacer.h"

#include <new>

#include "pacing/pacing_debt.h"

namespace embstore {

void TierPacer::phase_ended(std::chrono::steady_clock::time_point, std::span<const PhaseCount> counts,
                            std::span<const TouchedLine> lines) noexcept {
  try {
    const SeenShares::CountShares shares = shares_.shares_of(counts, lines);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double modelled_ns = device_->phase_ns(counts[i], shares[i].values());
      const double wait_ns = modelled_ns - static_cast<double>(counts[i].elapsed_ns);
      if (wait_ns > 0) add_pacing_wait(medium_, wait_ns);
    }
  } catch (const std::bad_alloc&) {
    // An update that is under way must not fail because there is no memory for pacing it.
  }
}

}  // namespace embstore
