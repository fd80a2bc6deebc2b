#include "access/device.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"

namespace embstore {

Device::Device(std::string name, CacheSizes caches, std::vector<uint64_t> sizes, std::vector<double> times_ns)
    : name_(std::move(name)), caches_(caches), sizes_(std::move(sizes)), times_ns_(std::move(times_ns)) {
  if (sizes_.empty() || !std::is_sorted(sizes_.begin(), sizes_.end()) ||
      times_ns_.size() != kWheres * kAccesses * sizes_.size() * kMostThreads) {
    throw Error(ErrorKind::kInvalidArgument,
                "devices: the table of " + name_ + " has " + std::to_string(times_ns_.size()) +
                    " times, which doesn't fit its " + std::to_string(sizes_.size()) + " ascending sizes");
  }
}

double Device::time_ns(Where where, Access access, double size_bytes, int threads) const {
  const size_t first = (static_cast<size_t>(where) * kAccesses + static_cast<size_t>(access)) * sizes_.size();
  const auto thread = static_cast<size_t>(std::clamp(threads, 1, kMostThreads) - 1);
  const auto at = [&](size_t i) { return times_ns_[(first + i) * kMostThreads + thread]; };
  const auto above = static_cast<size_t>(
      std::lower_bound(sizes_.begin(), sizes_.end(), size_bytes,
                       [](uint64_t size, double wanted) { return static_cast<double>(size) < wanted; }) -
      sizes_.begin());
  if (above == 0) return at(0);
  const auto below_bytes = static_cast<double>(sizes_[above - 1]);
  if (above == sizes_.size()) return at(above - 1) * size_bytes / below_bytes;
  const double part = (size_bytes - below_bytes) / (static_cast<double>(sizes_[above]) - below_bytes);
  return at(above - 1) + part * (at(above) - at(above - 1));
}

double Device::time_ns(Access access, uint64_t accesses, uint64_t bytes, int threads,
                       const OutcomeShares& shares) const {
  const double count = static_cast<double>(accesses);
  const double size = static_cast<double>(bytes) / count;
  const double there = time_ns(Where::kThere, access, size, threads);
  double one = shares[Outcome::kMiss] * there;
  if (shares[Outcome::kDirtied] != 0) {
    // The bytes needn't be fetched, but will be written back.
    one += shares[Outcome::kDirtied] *
           std::max(0.0, there - time_ns(Where::kThere, Access::kLoad, size, threads));
  }
  if (shares[Outcome::kCleanMiss] != 0) {
    one += shares[Outcome::kCleanMiss] * time_ns(Where::kCleanMiss, access, size, threads);
  }
  if (shares[Outcome::kDirtyMiss] != 0) {
    one += shares[Outcome::kDirtyMiss] * time_ns(Where::kDirtyMiss, access, size, threads);
  }
  return count * one;
}

}  // namespace embstore
