#include "access/tier_meter.h"

namespace embstore {

std::vector<AccessCount> TierMeter::counts() const {
  std::vector<AccessCount> counts;
  for (size_t access = 0; access < kAccesses; ++access) {
    for (int threads = 1; threads <= kMostThreads; ++threads) {
      const Cell& cell = cells_[access][cell_of(threads)];
      const uint64_t accesses = cell.accesses.load(std::memory_order_relaxed);
      if (accesses == 0) continue;
      counts.push_back({static_cast<Access>(access), threads, accesses,
                        cell.bytes.load(std::memory_order_relaxed),
                        cell.elapsed_ns.load(std::memory_order_relaxed)});
    }
  }
  return counts;
}

}  // namespace embstore
