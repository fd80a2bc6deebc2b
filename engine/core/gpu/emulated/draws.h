// Random decisions of the emulated device, drawn from its seed: the same calls with the same seed draw the
// same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace embstore::gpu::emulated {

class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  // SplitMix64, as in row/key_partition.h.
  uint64_t next() {
    uint64_t h = state_ += 0x9e3779b97f4a7c15ULL;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
    return h ^ (h >> 31);
  }
  // REQUIRES: 0 < count < 2^32.
  uint64_t below(uint64_t count) { return ((next() >> 32) * count) >> 32; }
  bool one_in(uint64_t count) { return below(count) == 0; }

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace embstore::gpu::emulated
