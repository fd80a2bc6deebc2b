// The distinct ids of a batch, on the device: see kernels/unique.h. Its memory is used again by the next batch, so each
// batch in flight needs one of its own.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffers.h"
#include "gpu/kernels/unique.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class UniqueBatch {
 public:
  UniqueBatch(Device& device, uint32_t most_ids, uint32_t block_threads = kMostBlockThreads);

  // A batch that is made unique, into `to`. `kept`: of each id, 0 leaves it out; none: all are kept. `id_count`: one in device memory,
  // how many of the ids there are; none: all. `count_on_host`: one, in pinned memory, where the count is wanted there.
  struct Input {
    UniqueBatch* to;
    Global<const int64_t> ids;
    Global<const int64_t> kept = {};
    Global<const uint32_t> id_count = {};
    Global<uint32_t> count_on_host = {};
  };
  // What this class gives is there when the stream has got there. Of several batches, each kernel is launched once.
  static void make_unique(std::span<const Input> batches, Stream stream);

  const DeviceArray<uint32_t>& count() const { return count_; }  // one: of distinct ids
  // In the order of their first occurrence.
  const DeviceArray<int64_t>& keys() const { return keys_; }
  const DeviceArray<uint32_t>& inverse() const {
    return inverse_;
  }  // of each id that is kept: its place in keys()

 private:
  static uint64_t table_entries(uint64_t ids) { return 2 * ids + 1; }
  Grid grid(const Input& of) const { return Grid::of(of.ids.count, block_threads_); }
  UniqueArguments arguments(const Input& of) const;

  Device& device_;
  const uint32_t block_threads_;
  DeviceArray<uint32_t> table_;
  DeviceArray<uint32_t> numbers_;
  DeviceArray<uint32_t> entries_;
  DeviceArray<uint32_t> block_firsts_;
  DeviceArray<int64_t> keys_;
  DeviceArray<uint32_t> inverse_;
  DeviceArray<uint32_t> count_;
};

}  // namespace embstore::gpu
