// How many rows a table may still get. A batch reserves what it may need before it changes anything.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/tier_stack.h"

namespace embstore {

class RowBudget {
 public:
  explicit RowBudget(uint64_t capacity_rows)
      : unlimited_(capacity_rows == TierStack::kUnlimited), rows_(capacity_rows) {}

  // False, and nothing is reserved, where so many are not left.
  bool reserve(uint64_t count) {
    if (unlimited_) return true;
    uint64_t left = rows_.load(std::memory_order_relaxed);
    do {
      if (left < count) return false;
    } while (!rows_.compare_exchange_weak(left, left - count, std::memory_order_relaxed));
    return true;
  }
  void release(uint64_t count) {
    if (!unlimited_) rows_.fetch_add(count, std::memory_order_relaxed);
  }
  // A reservation that is given back as far as it isn't used up, whatever happens.
  class Reservation {
   public:
    // REQUIRES: `count` rows were reserved.
    Reservation(RowBudget& budget, uint64_t count) : budget_(budget), unused_(count) {}
    ~Reservation() { budget_.release(unused_); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;
    void use(uint64_t count) { unused_ -= count; }

   private:
    RowBudget& budget_;
    uint64_t unused_;
  };

  uint64_t left() const { return rows_.load(std::memory_order_relaxed); }

 private:
  const bool unlimited_;
  std::atomic<uint64_t> rows_;
};

}  // namespace embstore
