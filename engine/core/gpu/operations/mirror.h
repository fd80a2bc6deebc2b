// The mirror of the host's index in a device's memory: see kernels/mirror.h.
//
// Finds may run on several streams at once. A change must be ordered, by events, after the finds that are on streams
// already, and before those that come.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffers.h"
#include "gpu/kernels/find.h"
#include "gpu/kernels/moves.h"
#include "gpu/operations/launches.h"

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

  // A batch that is found, into `to`. What lies `on_host` is in pinned memory, where it is wanted there.
  struct Input {
    FoundBatch* to;
    const Mirror* mirror;
    Global<const int64_t> ids;
    Global<const uint32_t> id_count = {};  // one in device memory: how many of the ids there are; none: all
    BatchPart part = {};                   // ids of other parts are left out
    Global<int64_t> missing_ids = {};      // elsewhere than in missing_ids()
    Global<uint32_t> missing_positions_on_host = {};
    Global<uint32_t> miss_count_on_host = {};
    // How many ids have a slot. Of all ids it is known by how many are missing.
    Global<uint32_t> hit_count_on_host = {};
  };
  // What this class gives is there when the stream has got there. Of several batches, each kernel is launched once.
  static void find(std::span<const Input> batches, Stream stream) {
    if (batches.empty()) return;
    Device& device = batches.front().to->device_;
    Launches launches;
    for (const Input& of : batches) {
      const Grid grid = of.to->grid(of);
      launches.add(gpu::find, grid,
                   {of.mirror->arrays(), of.ids, of.id_count, of.part, of.to->slots_.global(),
                    of.to->block_misses_.first(grid.blocks), of.to->hits(of)});
    }
    launches.put(device, stream);
    for (const Input& of : batches) {
      const Grid scan{1, of.to->block_threads_};
      launches.add(scan_counts, scan,
                   {of.to->block_misses_.first(of.to->grid(of).blocks), of.to->miss_count_.global(),
                    of.miss_count_on_host});
      if (of.hit_count_on_host.count != 0) {
        launches.add(scan_counts, scan, {of.to->hits(of), of.to->hit_count_.global(), of.hit_count_on_host});
      }
    }
    launches.put(device, stream);
    for (const Input& of : batches) {
      const Grid grid = of.to->grid(of);
      launches.add(collect_misses, grid,
                   {of.ids, of.id_count, of.part, of.to->slots_.constant(),
                    of.to->block_misses_.first(grid.blocks).as_const(),
                    of.missing_ids.count == 0 ? of.to->missing_ids_.global() : of.missing_ids,
                    of.to->missing_positions_.global(), of.missing_positions_on_host});
    }
    launches.put(device, stream);
  }
  void find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count, Stream stream) {
    const Input only{this, &mirror, ids, id_count};
    find({&only, 1}, stream);
  }

  const DeviceArray<uint32_t>& slots() const { return slots_; }  // of each id, or kNoSlot
  const DeviceArray<uint32_t>& miss_count() const { return miss_count_; }
  // In the order of the ids.
  const DeviceArray<int64_t>& missing_ids() const { return missing_ids_; }
  const DeviceArray<uint32_t>& missing_positions() const { return missing_positions_; }

 private:
  Grid grid(const Input& of) const { return Grid::of(of.ids.count, block_threads_); }
  Global<uint32_t> hits(const Input& of) const {
    return of.hit_count_on_host.count == 0 ? Global<uint32_t>{} : block_hits_.first(grid(of).blocks);
  }

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
