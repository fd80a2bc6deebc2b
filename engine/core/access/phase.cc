#include "access/phase.h"

#include <algorithm>
#include <span>

namespace embstore {
namespace {

thread_local Phase* innermost_phase = nullptr;

}  // namespace

Phase::Phase(TierMeter& meter) : outer_(innermost_phase) {
  enter(meter);
  innermost_phase = this;
  began_ = Clock::now();
}

void Phase::also_at(TierMeter& meter) { enter(meter); }

void Phase::enter(TierMeter& meter) {
  SharedMedium& medium = meter.medium();
  // A thread is there once, however deep its phases lie in each other.
  bool is_new = true;
  for (const Phase* phase = this; phase != nullptr && is_new; phase = phase->outer_)
    is_new = !phase->is_at(medium);
  meters_[meter_count_++] = {&meter, is_new ? medium.enter() : medium.threads(), is_new};
}

bool Phase::is_at(const SharedMedium& medium) const {
  return std::any_of(meters_.begin(), meters_.begin() + static_cast<ptrdiff_t>(meter_count_),
                     [&medium](const At& at) { return &at.meter->medium() == &medium; });
}

void Phase::add(TierMeter& meter, Access access, uint64_t accesses, uint64_t bytes, uint64_t size_bytes) {
  for (Tally& tally : std::span(tallies_).first(tally_count_)) {
    if (tally.meter != &meter || tally.access != access || tally.size_bytes != size_bytes) continue;
    tally.accesses += accesses;
    tally.bytes += bytes;
    return;
  }
  tallies_[tally_count_++] = {&meter, access, accesses, bytes, size_bytes};
}

Phase::~Phase() {
  const Clock::duration took = Clock::now() - began_;
  innermost_phase = outer_;
  if (outer_ != nullptr) outer_->of_inner_phases_ += took;
  const auto elapsed_ns = static_cast<double>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                  std::max(took - of_inner_phases_, Clock::duration{0}))
                                                  .count());
  const std::span<const Tally> tallies = std::span(tallies_).first(tally_count_);
  double bytes = 0;
  for (const Tally& tally : tallies) bytes += static_cast<double>(tally.bytes);
  for (const At& at : std::span(meters_).first(meter_count_)) {
    int threads = at.threads;
    // Others that came or went meanwhile were there half the time.
    if (at.was_entered) threads = (at.threads + at.meter->medium().leave() + 1) / 2;
    for (const Tally& tally : tallies) {
      if (tally.meter != at.meter) continue;
      const double share = static_cast<double>(tally.bytes) / bytes;
      tally.meter->add(
          {tally.access, threads, tally.accesses, tally.bytes, static_cast<uint64_t>(elapsed_ns * share)});
    }
  }
}

}  // namespace embstore
