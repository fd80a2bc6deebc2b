// Sorts the ids of a batch by a variable's partitions, so that each partition has neighbouring places; within
// a partition ids keep the batch's order. The next batch uses the memory again, so each batch in flight needs
// an IdsByPartition of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/partitions.h"
#include "gpu/kernels/places.h"
#include "gpu/operations/launches.h"
#include "gpu/operations/stable_sort.h"

namespace embstore::gpu {

class IdsByPartition {
 public:
  // REQUIRES: partitions > 1.
  IdsByPartition(Device& device, uint32_t max_ids, uint32_t partitions, uint32_t sort_threads = kSortThreads)
      : device_(device),
        partitions_(partitions),
        sort_(device, max_ids, sort_threads),
        ids_(device, max_ids),
        bounds_(device, partitions + 1) {}

  // A batch to take apart into `to`. `kept`: 0 leaves the id at this position out; empty: all are kept.
  // `bounds_on_host`, if given, gets the bounds in pinned memory too.
  struct Input {
    IdsByPartition* to;
    Global<const int64_t> ids;
    Global<const int64_t> kept = {};
    Global<uint32_t> bounds_on_host = {};
  };
  // ids(), order(), bounds() and count() hold the result when the stream has got there. Several batches share
  // kernel launches.
  static void partition(std::span<const Input> batches, Stream stream) {
    if (batches.empty()) return;
    Device& device = batches.front().to->device_;
    Launches launches;
    std::vector<StableSort::Input> sorts;
    for (const Input& batch : batches) {
      const Global<uint32_t> numbers = batch.to->sort_.input(static_cast<uint32_t>(batch.ids.count));
      launches.add(number_partitions, Grid::of(batch.ids.count, kMaxBlockThreads),
                   {batch.ids, batch.kept, batch.to->partitions_, numbers});
      sorts.push_back({&batch.to->sort_, numbers.as_const(), batch.to->partitions_});
    }
    launches.put(device, stream);
    StableSort::sort(sorts, stream);
    for (const Input& batch : batches) {
      launches.add(take_ids, Grid::of(batch.ids.count, kMaxBlockThreads),
                   {batch.ids, batch.to->order(), batch.to->ids_.first(batch.ids.count)});
      launches.add(find_bounds, Grid::of(batch.to->bounds_.count(), kMaxBlockThreads),
                   {batch.to->sort_.numbers(), {}, {}, batch.to->bounds_.global(), batch.bounds_on_host});
    }
    launches.put(device, stream);
  }

  const DeviceArray<int64_t>& ids() const { return ids_; }
  // The position in the batch of each of ids().
  Global<const uint32_t> order() const { return sort_.positions(); }
  // The begin of each partition in ids(), and the end of the last one; left-out ids come after it.
  Global<const uint32_t> bounds() const { return bounds_.constant(); }
  // One element: how many ids are kept.
  Global<const uint32_t> count() const { return {bounds_.address() + partitions_ * sizeof(uint32_t), 1}; }

 private:
  Device& device_;
  const uint32_t partitions_;
  StableSort sort_;
  DeviceArray<int64_t> ids_;
  DeviceArray<uint32_t> bounds_;
};

}  // namespace embstore::gpu
