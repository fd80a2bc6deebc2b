// The mirror of the host's index in a device's memory: see kernels/mirror.h.
//
// Finds may run on several streams at once. A change must be ordered, by events, after the finds that are on streams
// already, and before those that come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/find.h"
#include "gpu/kernels/places.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class Mirror {
 public:
  // For rows in `slots` slots, of which all may be taken. Waits for `stream`.
  Mirror(Device& device, uint32_t slots, Stream stream) : Mirror(device, slots, buckets_for(slots), stream) {}
  // With fewer buckets than would be quick, for tests. REQUIRES: an entry for every slot.
  Mirror(Device& device, uint32_t slots, uint64_t buckets, Stream stream);

  MirrorArrays arrays() const { return {buckets_.global(), keys_.global()}; }
  uint64_t bytes() const { return buckets_.bytes() + keys_.bytes(); }

  // The i-th key has its row in the i-th slot. `count`, one number that the device reaches, says how many keys there are, so
  // that the host need not know it yet. REQUIRES: no key twice, none that the mirror has, no slot that is taken.
  void insert(Global<const int64_t> keys, Global<const uint32_t> slots, Global<const uint32_t> count,
              Stream stream);
  // `slots` becomes where the rows were, kNoSlot for a key that the mirror hasn't. REQUIRES: no key twice.
  void erase(Global<const int64_t> keys, Global<uint32_t> slots, Global<const uint32_t> count, Stream stream);
  // The rows in these slots leave. REQUIRES: the mirror has a key in each, and no slot is there twice.
  void erase_slots(Global<const uint32_t> slots, Global<const uint32_t> count, Stream stream);
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

// A batch of ids, each found in the mirror of its table: their slots, and the list of those that it hasn't. Its memory is used again by
// the next batch, so each batch in flight needs one of its own.
class FoundBatch {
 public:
  FoundBatch(Device& device, uint32_t most_ids, uint32_t block_threads = kMostBlockThreads);

  // A batch that is found, into `to`. What lies `on_host` is in pinned memory, where it is wanted there.
  struct Input {
    FoundBatch* to;
    std::vector<const Mirror*> mirrors;    // of the tables
    Global<const int64_t> ids;             // in the order of tables
    Global<const uint32_t> id_count = {};  // one in device memory: how many of the ids there are; none: all
    Global<const uint32_t> bounds =
        {};  // where the ids of each table begin, and the last end; none: there is one table
    Global<const uint32_t> order = {};        // where given: the position of each id in the caller's batch
    Global<int64_t> missing_ids = {};         // elsewhere than in missing_ids()
    Global<uint32_t> positions_on_host = {};  // of the missing ids, in the caller's batch
    // Where the missing ids of each table begin in their list, and the last end. The first is 0, and isn't written where there is one table.
    Global<uint32_t> miss_bounds_on_host = {};

    // Where there is one table.
    Global<uint32_t> miss_count_on_host() const {
      if (miss_bounds_on_host.count == 0) return {};
      return {miss_bounds_on_host.address + sizeof(uint32_t), 1};
    }
    // Of a table's ids.
    Places places(uint32_t table) const {
      return bounds.count == 0 ? Places{.end = id_count} : places_of(bounds, table);
    }
  };
  // What this class gives is there when the stream has got there. Of several batches, each kernel is launched once.
  static void find(std::span<const Input> batches, Stream stream);
  void find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count, Stream stream);

  const DeviceArray<uint32_t>& slots() const { return slots_; }  // of each id, or kNoSlot
  const DeviceArray<uint32_t>& miss_count() const { return miss_count_; }
  // In the order of the ids.
  const DeviceArray<int64_t>& missing_ids() const { return missing_ids_; }
  const DeviceArray<uint32_t>& missing_places() const { return missing_places_; }  // among them

 private:
  Grid grid(const Input& of) const { return Grid::of(of.ids.count, block_threads_); }
  Global<uint32_t> block_misses(const Input& of) const { return block_misses_.first(grid(of).blocks); }
  MissesArguments misses(const Input& of) const;

  Device& device_;
  const uint32_t block_threads_;
  DeviceArray<uint32_t> slots_;
  DeviceArray<int64_t> missing_ids_;
  DeviceArray<uint32_t> missing_places_;
  DeviceArray<uint32_t> block_misses_;
  DeviceArray<uint32_t> miss_count_;
};

}  // namespace embstore::gpu
