// Offsets in a range in random order, computed faster than memory answers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace embstore {

class RandomOffsets {
 public:
  // Gives multiples of `step` below `range`. REQUIRES: 0 < step <= range, and range / step < 2^32.
  RandomOffsets(size_t range, size_t step, uint64_t seed)
      : slots_(range / step), step_(step), state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  size_t next() {
    state_ ^= state_ << 13;  // xorshift64
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return ((state_ >> 32) * slots_ >> 32) * step_;
  }

 private:
  const uint64_t slots_;
  const size_t step_;
  uint64_t state_;
};

}  // namespace embstore
