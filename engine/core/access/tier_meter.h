// Counts how the rows of one tier are touched: a phase at a time, which is what one call does there with a batch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "access/access.h"
#include "access/shared_medium.h"

namespace embstore {

struct AccessCount {
  Access access;
  int threads;  // that were at the tier's medium; kMostThreads: so many or more
  uint64_t accesses;
  uint64_t bytes;
  uint64_t elapsed_ns;
};

// Safe for threads.
class TierMeter {
 public:
  static constexpr int kMostThreads = 64;

  TierMeter() : medium_(std::make_shared<SharedMedium>()) {}

  // The tier's rows lie there, with those of others. REQUIRES: no phase began yet.
  void lies_on(std::shared_ptr<SharedMedium> medium) { medium_ = std::move(medium); }
  SharedMedium& medium() const { return *medium_; }

  // Since the tier was made; those that there are.
  std::vector<AccessCount> counts() const;

  void add(const AccessCount& count) {
    Cell& cell = cells_[static_cast<size_t>(count.access)][cell_of(count.threads)];
    cell.accesses.fetch_add(count.accesses, std::memory_order_relaxed);
    cell.bytes.fetch_add(count.bytes, std::memory_order_relaxed);
    cell.elapsed_ns.fetch_add(count.elapsed_ns, std::memory_order_relaxed);
  }

 private:
  struct Cell {
    std::atomic<uint64_t> accesses{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> elapsed_ns{0};
  };
  static size_t cell_of(int threads) { return static_cast<size_t>(std::clamp(threads, 1, kMostThreads) - 1); }

  std::shared_ptr<SharedMedium> medium_;
  std::array<std::array<Cell, kMostThreads>, kAccesses> cells_;
};

}  // namespace embstore
