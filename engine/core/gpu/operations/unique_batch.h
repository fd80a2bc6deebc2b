// The distinct ids of a batch, on the device: see kernels/unique.h. The next batch uses the memory again, so
// each batch in flight needs a UniqueBatch of its own.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffers.h"
#include "gpu/kernels/unique.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class UniqueBatch {
 public:
  UniqueBatch(Device& device, uint32_t max_ids, uint32_t block_threads = kMaxBlockThreads);

  // A batch to make unique into `to`. `kept`: 0 leaves the id at this position out; empty: all are kept.
  // `id_count` is one element in device memory: how many ids there are; empty: all. `count_on_host`, if
  // given, is one element in pinned memory that gets the count too.
  struct Input {
    UniqueBatch* to;
    Global<const int64_t> ids;
    Global<const int64_t> kept = {};
    Global<const uint32_t> id_count = {};
    Global<uint32_t> count_on_host = {};
  };
  // count(), keys() and inverse() hold the result when the stream has got there. Several batches share kernel
  // launches.
  static void make_unique(std::span<const Input> batches, Stream stream);

  const DeviceArray<uint32_t>& count() const { return count_; }  // one element: number of distinct ids
  // In the order of their first occurrence.
  const DeviceArray<int64_t>& keys() const { return keys_; }
  // The place in keys() of each kept id.
  const DeviceArray<uint32_t>& inverse() const { return inverse_; }

 private:
  static uint64_t table_entries(uint64_t ids) { return 2 * ids + 1; }
  Grid grid(const Input& batch) const { return Grid::of(batch.ids.count, block_threads_); }
  UniqueArguments arguments(const Input& batch) const;

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
