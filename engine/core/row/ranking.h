// The order in which a tier gives up its rows.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <limits>

namespace embstore {

enum class CacheStrategy { kLfu, kLru };

// A row's position in the order. LFU compares the count, then the time of the last access, which is when the
// count was reached. LRU compares that time alone. The coldest row has the smallest rank.
struct Rank {
  uint64_t count;
  uint64_t stamp;

  static Rank of(CacheStrategy strategy, uint64_t count, uint64_t stamp) {
    return {strategy == CacheStrategy::kLfu ? count : 0, stamp};
  }
  static constexpr Rank highest() {
    return {std::numeric_limits<uint64_t>::max(), std::numeric_limits<uint64_t>::max()};
  }
  auto operator<=>(const Rank&) const = default;
};

// The accesses of a batch of serving look-ups to one row, which are counted together.
struct ServedAccesses {
  uint64_t stamp;  // of the last access
  uint64_t count;
};

// The clock of ranking: every id of every batch has its own stamp, in the order in which the batches began.
// At a billion ids a second it overflows after centuries.
class AccessClock {
 public:
  // Returns the stamp of a batch's first id; the other ids have the stamps that follow.
  uint64_t begin_batch(uint64_t ids) { return next_stamp_.fetch_add(ids, std::memory_order_relaxed); }
  // The first stamp of the next batch.
  uint64_t next_stamp() const { return next_stamp_.load(std::memory_order_relaxed); }
  // Makes all later stamps greater than those of another table, whose rows are restored into this one.
  void advance_to(uint64_t next_stamp) {
    uint64_t now = next_stamp_.load(std::memory_order_relaxed);
    while (now < next_stamp && !next_stamp_.compare_exchange_weak(now, next_stamp)) {
    }
  }

  // The stamp of a row whose accesses come from a save without stamps.
  static constexpr uint64_t kFirstStamp = 1;

 private:
  std::atomic<uint64_t> next_stamp_{kFirstStamp + 1};
};

}  // namespace embstore
