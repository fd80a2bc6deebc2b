#include "pacing/device.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"

namespace embstore {

Device::Device(std::string name, CacheSizes caches, std::vector<uint64_t> sizes, std::vector<double> times_ns,
               std::vector<double> alone_ns)
    : name_(std::move(name)),
      caches_(caches),
      sizes_(std::move(sizes)),
      times_ns_(std::move(times_ns)),
      alone_ns_(std::move(alone_ns)) {
  if (sizes_.empty() || !std::is_sorted(sizes_.begin(), sizes_.end()) ||
      times_ns_.size() != kLocations * kAccesses * sizes_.size() * kMaxThreads ||
      alone_ns_.size() != kAccesses * sizes_.size()) {
    throw Error(ErrorKind::kInvalidArgument, "devices: the table of " + name_ + " has " +
                                                 std::to_string(times_ns_.size()) + " times and " +
                                                 std::to_string(alone_ns_.size()) +
                                                 " of accesses alone, which doesn't fit its " +
                                                 std::to_string(sizes_.size()) + " ascending sizes");
  }
}

Device::Place Device::place_of(double size_bytes) const {
  const auto above = static_cast<size_t>(
      std::lower_bound(sizes_.begin(), sizes_.end(), size_bytes,
                       [](uint64_t size, double wanted) { return static_cast<double>(size) < wanted; }) -
      sizes_.begin());
  if (above == 0) return {0, 0, 0, 1};
  const auto below_bytes = static_cast<double>(sizes_[above - 1]);
  if (above == sizes_.size()) return {above - 1, above - 1, 0, size_bytes / below_bytes};
  return {above - 1, above, (size_bytes - below_bytes) / (static_cast<double>(sizes_[above]) - below_bytes),
          1};
}

double Device::time_ns(Location where, Access access, const Place& place, int threads) const {
  const size_t first = (static_cast<size_t>(where) * kAccesses + static_cast<size_t>(access)) * sizes_.size();
  const auto thread = static_cast<size_t>(std::clamp(threads, 1, kMaxThreads) - 1);
  const double below = times_ns_[(first + place.below) * kMaxThreads + thread];
  const double above = times_ns_[(first + place.above) * kMaxThreads + thread];
  return (below + place.part * (above - below)) * place.beyond;
}

double Device::alone_ns(Access access, const Place& place) const {
  const double* of_access = alone_ns_.data() + static_cast<size_t>(access) * sizes_.size();
  const double below = of_access[place.below];
  return (below + place.part * (of_access[place.above] - below)) * place.beyond;
}

double Device::time_ns(Location where, Access access, double size_bytes, int threads) const {
  return time_ns(where, access, place_of(size_bytes), threads);
}

double Device::alone_ns(Access access, double size_bytes) const {
  return alone_ns(access, place_of(size_bytes));
}

double Device::phase_ns(const AccessCount& count, const OutcomeShares::Values& shares) const {
  const auto share = [&shares](Outcome outcome) { return shares[static_cast<size_t>(outcome)]; };
  const auto [access, threads] = std::pair(count.access, count.threads);
  const double accesses = static_cast<double>(count.accesses);
  const Place place = place_of(static_cast<double>(count.bytes) / accesses);
  const double there = time_ns(Location::kThere, access, place, threads);
  double one = share(Outcome::kMiss) * there;
  if (share(Outcome::kDirtied) != 0) {
    // The bytes needn't be fetched, but will be written back.
    one += share(Outcome::kDirtied) *
           std::max(0.0, there - time_ns(Location::kThere, Access::kLoad, place, threads));
  }
  if (share(Outcome::kCleanMiss) != 0) {
    one += share(Outcome::kCleanMiss) * time_ns(Location::kCleanMiss, access, place, threads);
  }
  if (share(Outcome::kDirtyMiss) != 0) {
    one += share(Outcome::kDirtyMiss) * time_ns(Location::kDirtyMiss, access, place, threads);
  }
  const double missed =
      accesses * (share(Outcome::kMiss) + share(Outcome::kCleanMiss) + share(Outcome::kDirtyMiss));
  const double waited_for = std::min(static_cast<double>(count.rounds), missed);
  return std::max(accesses * one, waited_for * alone_ns(access, place));
}

}  // namespace embstore
