// The mirror of the host's index in a device's memory: see kernels/mirror.h.
//
// Finds may run on several streams at once. A change must be ordered, by events, after the finds that are on streams
// already, and before those that come.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/find.h"
#include "gpu/kernels/moves.h"

namespace embstore::gpu {

class Mirror {
 public:
  // For rows in `slots` slots, of which all may be taken. Empty once `stream` has got there.
  Mirror(Device& device, uint32_t slots, Stream stream) : Mirror(device, slots, buckets_for(slots), stream) {}
  // With fewer buckets than would be quick, for tests. REQUIRES: an entry for every slot.
  Mirror(Device& device, uint32_t slots, uint64_t buckets, Stream stream)
      : device_(device), buckets_(device, buckets), keys_(device, slots), refused_(device, 1) {
    refused_.fill(0, stream);
    device_.launch(clear_mirror, Grid::of(buckets, kMostBlockThreads), {arrays()}, stream);
  }

  MirrorArrays arrays() const { return {buckets_.global(), keys_.global()}; }
  uint64_t bytes() const { return buckets_.bytes() + keys_.bytes(); }

  // The i-th key has its row in the i-th slot. `count`, one number that the device reaches, says how many keys there are, so
  // that the host need not know it yet. REQUIRES: no key twice, none that the mirror has, no slot that is taken.
  void insert(Global<const int64_t> keys, Global<const uint32_t> slots, Global<const uint32_t> count,
              Stream stream) {
    device_.launch(gpu::insert, Grid::of(keys.count, kMostBlockThreads),
                   {arrays(), keys, slots, count, refused_.global()}, stream);
  }
  // `slots` becomes where the rows were, kNoSlot for a key that the mirror hasn't. REQUIRES: no key twice.
  void erase(Global<const int64_t> keys, Global<uint32_t> slots, Global<const uint32_t> count,
             Stream stream) {
    const Grid grid = Grid::of(keys.count, kMostBlockThreads);
    device_.launch(locate, grid, {arrays(), keys, slots, count}, stream);
    device_.launch(gpu::erase, grid, {arrays(), keys, slots.as_const(), count}, stream);
  }
  // The rows in these slots leave. REQUIRES: the mirror has a key in each, and no slot is there twice.
  void erase_slots(Global<const uint32_t> slots, Global<const uint32_t> count, Stream stream) {
    device_.launch(gpu::erase, Grid::of(slots.count, kMostBlockThreads), {arrays(), {}, slots, count},
                   stream);
  }
  // How many keys found no entry ever. Anything but none is a bug of the caller's.
  Global<const uint32_t> refused() const { return refused_.constant(); }

 private:
  // At three quarters of its entries few keys pass a full bucket.
  static uint64_t buckets_for(uint32_t slots) { return uint64_t{slots} * 4 / (3 * kBucketEntries) + 1; }

  Device& device_;
  DeviceArray<Bucket> buckets_;
  DeviceArray<int64_t> keys_;
  DeviceArray<uint32_t> refused_;
};

// A batch of ids, found in a mirror: their slots, and the list of those that it hasn't. Its memory is used again by
// the next batch, so each batch in flight needs one of its own.
class FoundBatch {
 public:
  FoundBatch(Device& device, uint32_t most_ids, uint32_t block_threads = kMostBlockThreads)
      : device_(device),
        block_threads_(block_threads),
        slots_(device, most_ids),
        missing_ids_(device, most_ids),
        missing_positions_(device, most_ids),
        block_misses_(device, Grid::of(most_ids, block_threads).blocks),
        block_hits_(device, block_misses_.count()),
        miss_count_(device, 1),
        hit_count_(device, 1) {}

  // `id_count`: one number in device memory, at most ids.count. What this class gives is there when the stream has got
  // there.
  void find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count, Stream stream) {
    find(mirror, ids, id_count, missing_ids_.global(), {}, stream);
  }
  // The list of missing ids goes elsewhere: to pinned memory, say. Ids of other parts are left out.
  void find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count,
            Global<int64_t> missing_ids, const BatchPart& part, Stream stream) {
    const Grid grid = Grid::of(ids.count, block_threads_);
    const Global<uint32_t> misses = block_misses_.first(grid.blocks);
    // Of all ids it is known how many aren't missing.
    const Global<uint32_t> hits = part.is_all() ? Global<uint32_t>{} : block_hits_.first(grid.blocks);
    device_.launch(gpu::find, grid, {mirror.arrays(), ids, id_count, part, slots_.global(), misses, hits},
                   stream);
    device_.launch(scan_counts, {1, block_threads_}, {misses, miss_count_.global()}, stream);
    if (!part.is_all()) {
      device_.launch(scan_counts, {1, block_threads_}, {hits, hit_count_.global()}, stream);
    }
    device_.launch(
        collect_misses, grid,
        {ids, id_count, part, slots_.constant(), misses.as_const(), missing_ids, missing_positions_.global()},
        stream);
  }

  const DeviceArray<uint32_t>& slots() const { return slots_; }  // of each id, or kNoSlot
  const DeviceArray<uint32_t>& miss_count() const { return miss_count_; }
  // How many ids have a slot. REQUIRES: of a part of the batch.
  const DeviceArray<uint32_t>& hit_count() const { return hit_count_; }
  // In the order of the ids.
  const DeviceArray<int64_t>& missing_ids() const { return missing_ids_; }
  const DeviceArray<uint32_t>& missing_positions() const { return missing_positions_; }

 private:
  Device& device_;
  const uint32_t block_threads_;
  DeviceArray<uint32_t> slots_;
  DeviceArray<int64_t> missing_ids_;
  DeviceArray<uint32_t> missing_positions_;
  DeviceArray<uint32_t> block_misses_;
  DeviceArray<uint32_t> block_hits_;
  DeviceArray<uint32_t> miss_count_;
  DeviceArray<uint32_t> hit_count_;
};

}  // namespace embstore::gpu
