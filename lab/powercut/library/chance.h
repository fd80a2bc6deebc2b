// A seeded source of random choices: the same seed and stream give the same choices on every computer.
#pragma once

#include <cstdint>

namespace powercut {

class Chance {
 public:
  Chance(uint64_t seed, uint64_t stream)
      : state_(seed * 0x9e3779b97f4a7c15U ^ (stream + 1) * 0xd1342543de82ef95U) {
    next();
  }

  uint64_t next() {  // SplitMix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : next() % limit; }
  bool happens(double probability) { return static_cast<double>(next() >> 11U) * 0x1p-53 < probability; }

 private:
  uint64_t state_;
};

}  // namespace powercut
