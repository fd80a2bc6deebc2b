// The scope in which a thread works on the rows of one tier, or of several at once.
//
// It counts in plain variables, and tells the tiers' meters at its end. What it took is shared among what was counted,
// by bytes. A phase within another takes its time from that one.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "access/access.h"
#include "access/tier_meter.h"

namespace embstore {

class Phase {
 public:
  explicit Phase(TierMeter& meter);
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  // The same work touches another tier's rows too. At most kMostMeters, the first included.
  void also_at(TierMeter& meter);

  // So many accesses of so many bytes each.
  void count(Access access, uint64_t accesses, uint64_t size_bytes) {
    count_at(*meters_[0].meter, access, accesses, size_bytes);
  }
  // REQUIRES: the phase is at this meter; no more than kMostTallies kinds of accesses.
  void count_at(TierMeter& meter, Access access, uint64_t accesses, uint64_t size_bytes) {
    if (accesses != 0) add(meter, access, accesses, accesses * size_bytes, size_bytes);
  }
  // Accesses of several sizes, all together of so many bytes.
  void count_sizes(Access access, uint64_t accesses, uint64_t bytes) {
    if (accesses != 0) add(*meters_[0].meter, access, accesses, bytes, kSeveralSizes);
  }

  static constexpr size_t kMostMeters = 4;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint64_t kSeveralSizes = 0;
  static constexpr size_t kMostTallies = 8;

  struct At {
    TierMeter* meter;
    int threads;       // at its medium, when the phase came
    bool was_entered;  // not by a phase around this
  };
  struct Tally {
    TierMeter* meter;
    Access access;
    uint64_t accesses;
    uint64_t bytes;
    uint64_t size_bytes;  // of each; kSeveralSizes
  };

  void enter(TierMeter& meter);
  void add(TierMeter& meter, Access access, uint64_t accesses, uint64_t bytes, uint64_t size_bytes);
  bool is_at(const SharedMedium& medium) const;

  Phase* const outer_;  // of the same thread
  std::array<At, kMostMeters> meters_;
  size_t meter_count_ = 0;
  std::array<Tally, kMostTallies> tallies_;
  size_t tally_count_ = 0;
  Clock::duration of_inner_phases_{0};
  Clock::time_point began_;
};

}  // namespace embstore
