// Tables of how long accesses take on a device: by kind of access, size, and number of threads at the device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "access/access.h"
#include "access/access_count.h"
#include "pacing/cache_hierarchy.h"

namespace embstore {

class Device {
 public:
  static constexpr int kMaxThreads = 64;
  // The place of bytes that the CPU's caches don't have. kThere: on the device, or in a memory in front of
  // it. kCleanMiss, kDirtyMiss: on the device, while that memory has another line in their place, unchanged
  // or changed.
  enum class Location { kThere, kCleanMiss, kDirtyMiss };
  static constexpr size_t kLocations = 3;

  // `sizes`: bytes, ascending. `times_ns`: [where][access][size][threads - 1], for one access of many in
  // flight. `alone_ns`: [access][size], for one access from beginning to end, while nothing else is at the
  // device. Kinds of access that the device doesn't have may have any value. Throws Error(kInvalidArgument)
  // if the numbers of entries don't fit.
  Device(std::string name, CacheSizes caches, std::vector<uint64_t> sizes, std::vector<double> times_ns,
         std::vector<double> alone_ns);

  const std::string& name() const { return name_; }
  const CacheSizes& caches() const { return caches_; }
  // Return the nanoseconds of one access among many, and of one alone. They are linear in the bytes between
  // two sizes of the table, and proportional to the bytes beyond the last size; below the first size they are
  // those of the first.
  double time_ns(Location where, Access access, double size_bytes, int threads) const;
  double alone_ns(Access access, double size_bytes) const;
  // Returns the nanoseconds of a phase's accesses, if the caches have what `shares` says: the number of
  // accesses times the time of one among many, but at least the time of one alone for each of its rounds
  // (Little's law).
  double phase_ns(const AccessCount& count, const OutcomeShares::Values& shares) const;

 private:
  // The position of a size among those of the table.
  struct Place {
    size_t below;
    size_t above;
    double part;    // of the way from `below` to `above`
    double beyond;  // the size divided by the last size; 1 up to that
  };
  Place place_of(double size_bytes) const;
  double time_ns(Location where, Access access, const Place& place, int threads) const;
  double alone_ns(Access access, const Place& place) const;

  const std::string name_;
  const CacheSizes caches_;
  const std::vector<uint64_t> sizes_;
  const std::vector<double> times_ns_;
  const std::vector<double> alone_ns_;
};

}  // namespace embstore
