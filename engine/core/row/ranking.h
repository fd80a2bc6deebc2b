// The order in which a tier gives up its rows.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <limits>

namespace embstore {

enum class CacheStrategy { kLfu, kLru };

// A point in the order. LFU: by count, then by the time of the last access, which is when the count was
// reached. LRU: by that time alone. The coldest row is the least.
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

// Accesses of serving look-ups to one row, which are counted together.
struct ServedAccesses {
  uint64_t stamp;  // of the last
  uint64_t count;
};

// Time as ranking knows it: every id of every batch has a stamp of its own, in the order in which batches began.
// At a billion ids a second it lasts for centuries.
class AccessClock {
 public:
  // The stamp of a batch's first id; the next ids' follow.
  uint64_t begin_batch(uint64_t ids) { return next_stamp_.fetch_add(ids, std::memory_order_relaxed); }
  // The first stamp of the next batch.
  uint64_t next_stamp() const { return next_stamp_.load(std::memory_order_relaxed); }
  // Stamps from now on come after those of another table, whose rows are put in here.
  void advance_to(uint64_t next_stamp) {
    uint64_t now = next_stamp_.load(std::memory_order_relaxed);
    while (now < next_stamp && !next_stamp_.compare_exchange_weak(now, next_stamp)) {
    }
  }

  // Of a row that was accessed before any time was kept.
  static constexpr uint64_t kFirstStamp = 1;

 private:
  std::atomic<uint64_t> next_stamp_{kFirstStamp + 1};
};

}  // namespace embstore
