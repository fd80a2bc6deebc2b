// The mirror of the host's index in a device's memory: see kernels/mirror.h.
//
// Finds may run on several streams at once. Events must order a change after the finds that are on streams
// already, and before later finds.
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
  // For rows in `slots` slots, all of which may be in use. Waits for `stream`.
  Mirror(Device& device, uint32_t slots, Stream stream) : Mirror(device, slots, buckets_for(slots), stream) {}
  // For tests: with fewer buckets, so that many are full. REQUIRES: an entry for every slot.
  Mirror(Device& device, uint32_t slots, uint64_t buckets, Stream stream);

  MirrorArrays arrays() const { return {buckets_.global(), keys_.global()}; }
  uint64_t bytes() const { return buckets_.bytes() + keys_.bytes(); }

  // Enters keys: the i-th key has its row in the i-th slot. `count` is one number that the device reaches:
  // how many keys there are, which the host need not know yet. REQUIRES: no key twice, no key that the mirror
  // has, no slot that is taken.
  void insert(Global<const int64_t> keys, Global<const uint32_t> slots, Global<const uint32_t> count,
              Stream stream);
  // Removes keys, and sets `slots` to the slots of their rows, kNoSlot for a key that the mirror doesn't
  // have. REQUIRES: no key twice.
  void erase(Global<const int64_t> keys, Global<uint32_t> slots, Global<const uint32_t> count, Stream stream);
  // Removes the keys whose rows are in these slots. REQUIRES: the mirror has a key for each, and no slot is
  // given twice.
  void erase_slots(Global<const uint32_t> slots, Global<const uint32_t> count, Stream stream);
  // The number of keys that ever found no entry. Any number but 0 is a bug of the caller's.
  Global<const uint32_t> refused() const { return refused_.constant(); }

 private:
  // If three quarters of the entries are used, few keys pass a full bucket.
  static uint64_t buckets_for(uint32_t slots) { return uint64_t{slots} * 4 / (3 * kBucketEntries) + 1; }

  Device& device_;
  DeviceArray<Bucket> buckets_;
  DeviceArray<int64_t> keys_;
  DeviceArray<uint32_t> refused_;
};

// A batch of ids, each found in the mirror of its table: their slots, and a list of the ids that the mirrors
// don't have. The next batch uses the memory again, so each batch in flight needs a FoundBatch of its own.
class FoundBatch {
 public:
  FoundBatch(Device& device, uint32_t max_ids, uint32_t block_threads = kMaxBlockThreads);

  // A batch to find into `to`. Arrays named `on_host` are in pinned memory and optional.
  struct Input {
    FoundBatch* to;
    std::vector<const Mirror*> mirrors;    // one for each table
    Global<const int64_t> ids;             // in the order of the tables
    Global<const uint32_t> id_count = {};  // one element: how many ids there are; empty: all
    // The begin of each table's ids, and the end of the last table's. Empty: there is one table.
    Global<const uint32_t> bounds = {};
    Global<const uint32_t> order = {};        // if given: each id's position in the caller's batch
    Global<int64_t> missing_ids = {};         // if given: used instead of missing_ids()
    Global<uint32_t> positions_on_host = {};  // missing ids' positions in the caller's batch
    // The begin of each table's missing ids in their list, and the end of the last table's. The first is 0;
    // with one table it isn't written.
    Global<uint32_t> miss_bounds_on_host = {};

    // For one table.
    Global<uint32_t> miss_count_on_host() const {
      if (miss_bounds_on_host.count == 0) return {};
      return {miss_bounds_on_host.address + sizeof(uint32_t), 1};
    }
    // The places of a table's ids.
    Places places(uint32_t table) const {
      return bounds.count == 0 ? Places{.end = id_count} : places_of(bounds, table);
    }
  };
  // slots(), miss_count(), missing_ids() and missing_places() hold the result when the stream has got there.
  // Several batches share kernel launches.
  static void find(std::span<const Input> batches, Stream stream);
  void find(const Mirror& mirror, Global<const int64_t> ids, Global<const uint32_t> id_count, Stream stream);

  const DeviceArray<uint32_t>& slots() const { return slots_; }  // each id's slot, or kNoSlot
  const DeviceArray<uint32_t>& miss_count() const { return miss_count_; }
  // In the order of the ids.
  const DeviceArray<int64_t>& missing_ids() const { return missing_ids_; }
  const DeviceArray<uint32_t>& missing_places() const { return missing_places_; }  // places among the ids

 private:
  Grid grid(const Input& batch) const { return Grid::of(batch.ids.count, block_threads_); }
  Global<uint32_t> block_misses(const Input& batch) const { return block_misses_.first(grid(batch).blocks); }
  MissesArguments misses(const Input& batch) const;

  Device& device_;
  const uint32_t block_threads_;
  DeviceArray<uint32_t> slots_;
  DeviceArray<int64_t> missing_ids_;
  DeviceArray<uint32_t> missing_places_;
  DeviceArray<uint32_t> block_misses_;
  DeviceArray<uint32_t> miss_count_;
};

}  // namespace embstore::gpu
