// Counts how many rows each tier has, and how many more the table may get.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "row/place.h"
#include "tiers/make_tiers.h"

namespace embstore {

class RowCounts {
 public:
  explicit RowCounts(uint64_t total_capacity_rows)
      : unlimited_(total_capacity_rows == kUnlimitedRows), room_(total_capacity_rows) {}

  // The number of rows that the index refers to. A row on the move is counted in neither tier: a tier that
  // looked fuller than it is would evict a row that outranks the one on the move.
  uint64_t rows(size_t t) const {
    return static_cast<uint64_t>(std::max(rows_[t].load(std::memory_order_relaxed), int64_t{0}));
  }
  void add(size_t t, int64_t count) { rows_[t].fetch_add(count, std::memory_order_relaxed); }

  // --- Room for new rows. A batch reserves all that it may need before it changes anything.
  // Returns false, and reserves nothing, if less than `count` is left.
  bool try_reserve(uint64_t count) {
    if (unlimited_) return true;
    uint64_t left = room_.load(std::memory_order_relaxed);
    do {
      if (left < count) return false;
    } while (!room_.compare_exchange_weak(left, left - count, std::memory_order_relaxed));
    return true;
  }
  void give_back(uint64_t count) {
    if (!unlimited_) room_.fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t room() const { return room_.load(std::memory_order_relaxed); }

 private:
  const bool unlimited_;
  std::atomic<uint64_t> room_;
  std::array<std::atomic<int64_t>, RowRef::kMaxTiers> rows_{};
};

}  // namespace embstore
