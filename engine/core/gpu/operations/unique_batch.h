// The distinct ids of a batch, on the device: see kernels/unique.h. Its memory is used again by the next batch, so each
// batch in flight needs one of its own.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/unique.h"

namespace embstore::gpu {

class UniqueBatch {
 public:
  UniqueBatch(Device& device, uint32_t most_ids, uint32_t block_threads = kMostBlockThreads)
      : device_(device),
        block_threads_(block_threads),
        table_(device, table_entries(most_ids)),
        numbers_(device, table_entries(most_ids)),
        entries_(device, most_ids),
        block_firsts_(device, Grid::of(most_ids, block_threads).blocks),
        keys_(device, most_ids),
        occurrences_(device, most_ids),
        inverse_(device, most_ids),
        count_(device, 1) {}

  // What this class gives is there when the stream has got there. `kept`: of each id, 0 leaves it out; none: all are kept. So
  // are ids of another part.
  void make_unique(Global<const int64_t> ids, Stream stream, Global<const int64_t> kept = {},
                   const BatchPart& part = {}) {
    const Grid grid = Grid::of(ids.count, block_threads_);
    const Global<uint32_t> table = table_.first(table_entries(ids.count));
    const Global<uint32_t> firsts = block_firsts_.first(grid.blocks);
    const UniqueArguments arguments{ids,
                                    kept,
                                    part,
                                    table,
                                    numbers_.first(table.count),
                                    entries_.global(),
                                    firsts,
                                    keys_.global(),
                                    occurrences_.global(),
                                    inverse_.global()};
    device_.fill(table.address, 0xff, table.count * sizeof(uint32_t), stream);
    device_.launch(claim_ids, grid, arguments, stream);
    device_.launch(count_first, grid, arguments, stream);
    device_.launch(scan_counts, {1, block_threads_}, {firsts, count_.global()}, stream);
    device_.launch(number_first, grid, arguments, stream);
    device_.launch(number_ids, grid, arguments, stream);
  }

  const DeviceArray<uint32_t>& count() const { return count_; }  // one: of distinct ids
  // In the order of their first occurrence.
  const DeviceArray<int64_t>& keys() const { return keys_; }
  const DeviceArray<uint32_t>& occurrences() const { return occurrences_; }  // of each key
  const DeviceArray<uint32_t>& inverse() const {
    return inverse_;
  }  // of each id that is kept: its place in keys()

 private:
  static uint64_t table_entries(uint64_t ids) { return 2 * ids + 1; }

  Device& device_;
  const uint32_t block_threads_;
  DeviceArray<uint32_t> table_;
  DeviceArray<uint32_t> numbers_;
  DeviceArray<uint32_t> entries_;
  DeviceArray<uint32_t> block_firsts_;
  DeviceArray<int64_t> keys_;
  DeviceArray<uint32_t> occurrences_;
  DeviceArray<uint32_t> inverse_;
  DeviceArray<uint32_t> count_;
};

}  // namespace embstore::gpu
