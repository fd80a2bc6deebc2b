// By what rows in a device's memory are ranked, by slot: counted when they are accessed, as the host's first tier counts. See
// kernels/ranks.h.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/ranks.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

class DeviceRanks {
 public:
  // No slot has a row once `stream` has got there.
  DeviceRanks(Device& device, uint32_t slots, Stream stream)
      : device_(device), metas_(device, slots), served_(device, slots), stamps_(device, slots) {
    stamps_.fill(0, stream);
  }

  RankArrays arrays() const { return {metas_.global(), served_.global(), stamps_.global()}; }
  const DeviceArray<RowMeta>& metas() const { return metas_; }
  const DeviceArray<uint64_t>& served() const { return served_; }
  const DeviceArray<uint64_t>& stamps() const { return stamps_; }
  uint64_t bytes() const { return metas_.bytes() + served_.bytes() + stamps_.bytes(); }

  // Of the distinct ids of a batch, `slots` says where they have rows: none twice, kNoSlot where they have none.

  // Counts an update: occurrences, the version, the span of saves, and the stamp of the last occurrence. REQUIRES: sums.sort()
  // or sums.sum() of the unique batch.
  void count_update(Global<const uint32_t> slots, const UniqueBatch& unique, const GradientSums& sums,
                    const CountedUpdate& update, Stream stream) {
    if (slots.count == 0) return;
    device_.launch(count_updates_of_rows, Grid::of(slots.count, kMostBlockThreads),
                   {arrays(), slots, unique.count().constant(), unique.occurrences().constant(),
                    sums.positions(), sums.begins().constant(), update},
                   stream);
  }
  // Counts a served look-up of `ids` ids, each of which is an access of its own. REQUIRES: until then, moves wait.
  void count_hits(Global<const uint32_t> slots, const UniqueBatch& unique, uint32_t ids, uint64_t first_stamp,
                  Stream stream) {
    if (ids == 0) return;
    device_.launch(count_hits_of_rows, Grid::of(ids, kMostBlockThreads),
                   {arrays(), slots, unique.inverse().first(ids).as_const(), first_stamp}, stream);
  }

 private:
  Device& device_;
  DeviceArray<RowMeta> metas_;
  DeviceArray<uint64_t> served_;
  DeviceArray<uint64_t> stamps_;
};

}  // namespace embstore::gpu
