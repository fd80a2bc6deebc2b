// How long accesses take on a device, as tables: by how the bytes are touched, how many there are, and how many threads
// are at it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "access/access.h"
#include "access/cache_hierarchy.h"

namespace embstore {

class Device {
 public:
  static constexpr int kMostThreads = 64;
  // Where the CPU's caches don't have the bytes: on the device, or in a memory in front of it, or on the device with
  // another line in their place in that memory, as the device has it or changed.
  enum class Where { kThere, kCleanMiss, kDirtyMiss };
  static constexpr size_t kWheres = 3;

  // sizes: bytes, ascending. times_ns: [where][access][size][threads - 1]; what the device doesn't do is unspecified.
  // Throws Error(kInvalidArgument) where there aren't so many.
  Device(std::string name, CacheSizes caches, std::vector<uint64_t> sizes, std::vector<double> times_ns);

  const std::string& name() const { return name_; }
  const CacheSizes& caches() const { return caches_; }
  // Nanoseconds of one access. Linear in the bytes between two sizes of the table, and as the last beyond it; the first
  // is the least.
  double time_ns(Where where, Access access, double size_bytes, int threads) const;
  // Of so many accesses, of which the caches have found what `shares` says.
  double time_ns(Access access, uint64_t accesses, uint64_t bytes, int threads,
                 const OutcomeShares& shares) const;

 private:
  const std::string name_;
  const CacheSizes caches_;
  const std::vector<uint64_t> sizes_;
  const std::vector<double> times_ns_;
};

}  // namespace embstore
