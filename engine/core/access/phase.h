// The scope in which a thread works on the rows of one tier, or of several at once.
//
// It counts in plain variables, and tells the tiers' meters at its end. What it took is shared among what was counted,
// by bytes. A phase within another takes its time from that one.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

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
    if (accesses != 0) add(meter, access, accesses, accesses * size_bytes, size_bytes, 0);
  }
  // Accesses of several sizes, all together of so many bytes, in so many rounds of which each begins when the one
  // before has ended. All others of a phase are in flight together.
  void count_in_rounds(Access access, uint64_t accesses, uint64_t bytes, uint64_t rounds) {
    if (accesses != 0) add(*meters_[0].meter, access, accesses, bytes, kSeveralSizes, rounds);
  }

  // Whether whoever counts says where, too, by touch(): nobody wants to know, most of the time.
  bool wants_places() const { return notes_ >= TierMeter::Notes::kSampledLines; }
  // Where one of the accesses of this size was, that are counted as well.
  void touch(TierMeter& meter, Access access, uint64_t size_bytes, const void* address) noexcept;

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
    uint64_t touched_lines;
    uint64_t rounds;  // 0: nobody counts them, so one
  };

  void enter(TierMeter& meter);
  void add(TierMeter& meter, Access access, uint64_t accesses, uint64_t bytes, uint64_t size_bytes,
           uint64_t rounds);
  // Its number; a new one where there's none.
  size_t tally_of(TierMeter& meter, Access access, uint64_t size_bytes);
  void tell_watchers(const At& at, int threads, double ns_a_byte) noexcept;
  bool is_at(const SharedMedium& medium) const;

  Phase* const outer_;                                  // of the same thread
  TierMeter::Notes notes_ = TierMeter::Notes::kCounts;  // the most that a meter wants
  std::array<At, kMostMeters> meters_;
  size_t meter_count_ = 0;
  std::array<Tally, kMostTallies> tallies_;
  size_t tally_count_ = 0;
  std::vector<TouchedLine> lines_;  // by number of the tally
  Clock::duration of_inner_phases_{0};
  Clock::time_point began_;
};

}  // namespace embstore
