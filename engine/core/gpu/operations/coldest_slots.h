// The rows that a device's memory would give up: see kernels/coldest.h. They are the host's ColdestRows but for one thing: rows
// that rank the same have an order, that of their slots. The memory of a search is used again by the next one.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/coldest.h"
#include "gpu/operations/device_ranks.h"
#include "row/ranking.h"

namespace embstore::gpu {

class ColdestSlots {
 public:
  static constexpr uint32_t kSlotRounds = 32;  // fewer blocks, whose counts one block sums

  ColdestSlots(Device& device, uint32_t slots, uint32_t most_chosen,
               uint32_t block_threads = kMostBlockThreads, uint32_t slot_rounds = kSlotRounds)
      : device_(device),
        block_threads_(block_threads),
        slot_rounds_(slot_rounds),
        highest_(device, kRankWords),
        limit_(device, kRankWords),
        rows_(device, 1),
        rest_(device, 1),
        digits_(device, kRankDigits),
        block_below_(device, grid(slots).blocks),
        block_ties_(device, grid(slots).blocks),
        total_(device, 1),
        chosen_(device, most_chosen),
        count_(device, 1) {}

  // Of the rows in the first `slots` slots, the `wanted` coldest, one number that the device reaches; all, where there are fewer,
  // and never more than most_chosen. What this class gives is there when the stream has got there. REQUIRES: moves and
  // accesses wait until then.
  void find(const DeviceRanks& ranks, uint32_t slots, CacheStrategy strategy, Global<const uint32_t> wanted,
            Stream stream) {
    const Grid grid = this->grid(slots);
    const Global<uint32_t> below = block_below_.first(grid.blocks);
    const Global<uint32_t> ties = block_ties_.first(grid.blocks);
    const bool by_count = strategy == CacheStrategy::kLfu;
    const ColdestArguments arguments{.ranks = ranks.arrays(),
                                     .slots = slots,
                                     .by_count = by_count,
                                     .slot_rounds = slot_rounds_,
                                     .wanted = wanted,
                                     .highest = highest_.global(),
                                     .limit = limit_.global(),
                                     .rows = rows_.global(),
                                     .rest = rest_.global(),
                                     .digits = digits_.global(),
                                     .block_below = below,
                                     .block_ties = ties,
                                     .chosen = chosen_.global(),
                                     .chosen_count = count_.global()};
    highest_.fill(0, stream);
    limit_.fill(0, stream);
    rows_.fill(0, stream);
    digits_.fill(0, stream);
    device_.launch(measure_ranks, grid, arguments, stream);
    device_.launch(begin_narrowing, {1, 1}, arguments, stream);
    for (uint32_t word = by_count ? 0 : 1; word < kRankWords; ++word) {
      for (uint32_t shift = 64; shift > 0;) {
        shift -= kRankDigitBits;
        device_.launch(count_rank_digits, grid, {arguments, word, shift}, stream);
        device_.launch(narrow_ranks, {1, kRankDigits}, {arguments, word, shift}, stream);
      }
    }
    device_.launch(count_coldest, grid, arguments, stream);
    device_.launch(scan_counts, {1, kMostBlockThreads}, {below, total_.global()}, stream);
    device_.launch(scan_counts, {1, kMostBlockThreads}, {ties, total_.global()}, stream);
    device_.launch(collect_coldest, grid, arguments, stream);
  }

  const DeviceArray<uint32_t>& count() const { return count_; }   // one: how many were chosen
  const DeviceArray<uint32_t>& slots() const { return chosen_; }  // in the order of slots

 private:
  Grid grid(uint64_t slots) const {
    return Grid::of((slots + slot_rounds_ - 1) / slot_rounds_, block_threads_);
  }

  Device& device_;
  const uint32_t block_threads_;
  const uint32_t slot_rounds_;
  DeviceArray<uint64_t> highest_;
  DeviceArray<uint64_t> limit_;
  DeviceArray<uint32_t> rows_;
  DeviceArray<uint32_t> rest_;
  DeviceArray<uint32_t> digits_;
  DeviceArray<uint32_t> block_below_;
  DeviceArray<uint32_t> block_ties_;
  DeviceArray<uint32_t> total_;
  DeviceArray<uint32_t> chosen_;
  DeviceArray<uint32_t> count_;
};

}  // namespace embstore::gpu
