// How long accesses take on a device, as tables: by how the bytes are touched, how many there are, and how many threads
// are at it.
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
  static constexpr int kMostThreads = 64;
  // Where the CPU's caches don't have the bytes: on the device, or in a memory in front of it, or on the device with
  // another line in their place in that memory, as the device has it or changed.
  enum class Where { kThere, kCleanMiss, kDirtyMiss };
  static constexpr size_t kWheres = 3;

  // sizes: bytes, ascending. times_ns: [where][access][size][threads - 1], of accesses of which many are in flight.
  // alone_ns: [access][size], of one from beginning to end, while nothing else is at the device. What the device
  // doesn't do is unspecified. Throws Error(kInvalidArgument) where there aren't so many.
  Device(std::string name, CacheSizes caches, std::vector<uint64_t> sizes, std::vector<double> times_ns,
         std::vector<double> alone_ns);

  const std::string& name() const { return name_; }
  const CacheSizes& caches() const { return caches_; }
  // Nanoseconds of one access among many, and of one alone. Linear in the bytes between two sizes of the table, and as
  // the last beyond it; the first is the least.
  double time_ns(Where where, Access access, double size_bytes, int threads) const;
  double alone_ns(Access access, double size_bytes) const;
  // What a phase's accesses take, of which the caches have found what `shares` says: as many times as one among many
  // takes, but no less than one alone takes in each of its rounds (Little's law).
  double phase_ns(const AccessCount& count, const OutcomeShares::Values& shares) const;

 private:
  // Where a size lies among those of the table.
  struct Place {
    size_t below;
    size_t above;
    double part;    // of the way from one to the other
    double beyond;  // times the last size; 1 up to it
  };
  Place place_of(double size_bytes) const;
  double time_ns(Where where, Access access, const Place& place, int threads) const;
  double alone_ns(Access access, const Place& place) const;

  const std::string name_;
  const CacheSizes caches_;
  const std::vector<uint64_t> sizes_;
  const std::vector<double> times_ns_;
  const std::vector<double> alone_ns_;
};

}  // namespace embstore
