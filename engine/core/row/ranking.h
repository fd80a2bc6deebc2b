// The order in which a tier gives up its rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace embstore {

enum class CacheStrategy { kLfu, kLru };

// What a ranked tier keeps of each slot beside RowMeta: all that ranking asks for, in half a cache line.
// The numbers only grow while a row stays.
struct alignas(32) SlotRank {
  std::atomic<int64_t> key;         // of the row that fills the slot, or filled it last
  std::atomic<uint64_t> frequency;  // that of RowMeta
  std::atomic<uint64_t> served;     // occurrences in serving look-ups; guarded by the mover's mutex
  std::atomic<uint64_t> stamp;      // of the last access of either kind; 0: the slot is free
};

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

// Time as ranking knows it: batches in the order in which they began, then places within one.
class AccessClock {
 public:
  // The stamp of a batch's first id; the next ids' follow.
  uint64_t begin_batch() { return next_batch_.fetch_add(1, std::memory_order_relaxed) << 32; }
  // The number of the next batch.
  uint64_t next_batch() const { return next_batch_.load(std::memory_order_relaxed); }
  // Batches from now on come after those of another table, whose rows are put in here.
  void advance_to(uint64_t next_batch) {
    if (next_batch_.load(std::memory_order_relaxed) < next_batch) next_batch_.store(next_batch);
  }

  // Of a row that was accessed before any time was kept.
  static constexpr uint64_t kFirstStamp = 1;

 private:
  std::atomic<uint64_t> next_batch_{1};
};

}  // namespace embstore
