// The ids of a batch in the order of a variable's partitions, so that each has neighbouring places; within a partition they keep the order
// of the batch. Its memory is used again by the next batch, so each batch in flight needs one of its own.
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
  // For so many partitions, of which there are several.
  IdsByPartition(Device& device, uint32_t most_ids, uint32_t partitions, uint32_t sort_threads = kSortThreads)
      : device_(device),
        partitions_(partitions),
        sort_(device, most_ids, sort_threads),
        ids_(device, most_ids),
        bounds_(device, partitions + 1) {}

  // A batch that is taken apart, into `to`. `kept`: of each id, 0 leaves it out; none: all are kept. `bounds_on_host`: likewise,
  // in pinned memory, where they are wanted.
  struct Input {
    IdsByPartition* to;
    Global<const int64_t> ids;
    Global<const int64_t> kept = {};
    Global<uint32_t> bounds_on_host = {};
  };
  // What this class gives is there when the stream has got there. Of several batches, each kernel is launched once a pass.
  static void take_apart(std::span<const Input> batches, Stream stream) {
    if (batches.empty()) return;
    Device& device = batches.front().to->device_;
    Launches launches;
    std::vector<StableSort::Input> sorts;
    for (const Input& of : batches) {
      const Global<uint32_t> numbers = of.to->sort_.input(static_cast<uint32_t>(of.ids.count));
      launches.add(number_partitions, Grid::of(of.ids.count, kMostBlockThreads),
                   {of.ids, of.kept, of.to->partitions_, numbers});
      sorts.push_back({&of.to->sort_, numbers.as_const(), of.to->partitions_});
    }
    launches.put(device, stream);
    StableSort::sort(sorts, stream);
    for (const Input& of : batches) {
      launches.add(take_ids, Grid::of(of.ids.count, kMostBlockThreads),
                   {of.ids, of.to->order(), of.to->ids_.first(of.ids.count)});
      launches.add(find_bounds, Grid::of(of.to->bounds_.count(), kMostBlockThreads),
                   {of.to->sort_.numbers(), {}, {}, of.to->bounds_.global(), of.bounds_on_host});
    }
    launches.put(device, stream);
  }

  const DeviceArray<int64_t>& ids() const { return ids_; }
  Global<const uint32_t> order() const {
    return sort_.positions();
  }  // of each of them: its position in the batch
  // Where each partition begins in them, and where the last one ends: those that are left out come after it.
  Global<const uint32_t> bounds() const { return bounds_.constant(); }
  // How many ids are kept: one.
  Global<const uint32_t> count() const { return {bounds_.address() + partitions_ * sizeof(uint32_t), 1}; }

 private:
  Device& device_;
  const uint32_t partitions_;
  StableSort sort_;
  DeviceArray<int64_t> ids_;
  DeviceArray<uint32_t> bounds_;
};

}  // namespace embstore::gpu
