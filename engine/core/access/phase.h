// The scope in which a thread works on the rows of one tier, or of several at once.
//
// A phase counts accesses in plain variables, and adds them to the tiers' meters when it ends. Its duration
// is shared among its accesses by their bytes. A phase inside another phase takes its time off the outer
// one's.
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

  // Adds a tier whose rows the same work touches. REQUIRES: at most kMaxMeters tiers, the first included.
  void add_meter(TierMeter& meter);

  // Counts accesses of `size_bytes` each at the first tier's meter.
  void count(Access access, uint64_t accesses, uint64_t size_bytes) {
    count_at(*meters_[0].meter, access, accesses, size_bytes);
  }
  // The same at `meter`. REQUIRES: the phase is at this meter; at most kMaxTallies combinations of meter,
  // access and size.
  void count_at(TierMeter& meter, Access access, uint64_t accesses, uint64_t size_bytes) {
    if (accesses != 0) add(meter, access, accesses, accesses * size_bytes, size_bytes, 0);
  }
  // Counts accesses of several sizes, `bytes` in all, in `rounds` rounds, each of which begins when the round
  // before has ended. All other accesses of a phase are in flight together.
  void count_in_rounds(Access access, uint64_t accesses, uint64_t bytes, uint64_t rounds) {
    if (accesses != 0) add(*meters_[0].meter, access, accesses, bytes, kSeveralSizes, rounds);
  }

  // Returns whether a watcher wants the addresses of accesses; the caller then reports them by touch().
  // Mostly none does.
  bool wants_addresses() const { return notes_ >= TierMeter::Notes::kSampledLines; }
  // Notes the address of one access of this size. The access has to be counted, too.
  void touch(TierMeter& meter, Access access, uint64_t size_bytes, const void* address) noexcept;

  static constexpr size_t kMaxMeters = 4;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint64_t kSeveralSizes = 0;
  static constexpr size_t kMaxTallies = 8;

  struct MeterEntry {
    TierMeter* meter;
    int threads;       // at its medium when the phase came
    bool was_entered;  // false: an outer phase is at the medium already
  };
  struct Tally {
    TierMeter* meter;
    Access access;
    uint64_t accesses;
    uint64_t bytes;
    uint64_t size_bytes;  // of each access, or kSeveralSizes
    uint64_t touched_lines;
    uint64_t rounds;  // 0: not counted, so one
  };

  void enter(TierMeter& meter);
  void add(TierMeter& meter, Access access, uint64_t accesses, uint64_t bytes, uint64_t size_bytes,
           uint64_t rounds);
  // Returns the tally's index; adds the tally if it is new.
  size_t tally_of(TierMeter& meter, Access access, uint64_t size_bytes);
  void notify_watchers(const MeterEntry& at, int threads, double ns_a_byte) noexcept;
  bool is_at(const SharedMedium& medium) const;

  Phase* const outer_;                                  // the phase around it, in this thread
  TierMeter::Notes notes_ = TierMeter::Notes::kCounts;  // the most detailed that a meter wants
  std::array<MeterEntry, kMaxMeters> meters_;
  size_t meter_count_ = 0;
  std::array<Tally, kMaxTallies> tallies_;
  size_t tally_count_ = 0;
  std::vector<TouchedLine> lines_;  // their groups are indices of tallies_
  Clock::duration of_inner_phases_{0};
  Clock::time_point began_;
};

}  // namespace embstore
