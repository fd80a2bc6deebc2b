// The gradients of a batch, put in order by distinct id, and summed in the order of the batch: the CPU's bits. Its memory is used again
// by the next batch, so each batch in flight needs one of its own.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/buffers.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/operations/launches.h"
#include "gpu/operations/stable_sort.h"
#include "gpu/operations/unique_batch.h"

namespace embstore::gpu {

class GradientSums {
 public:
  GradientSums(Device& device, uint32_t most_ids, uint32_t dim, uint32_t sort_threads = kSortThreads);

  // A batch that is put in order, into `to`. REQUIRES: `unique` has so many ids.
  struct Input {
    GradientSums* to;
    const UniqueBatch* unique;
    uint32_t ids;
    Global<const uint32_t> order = {};  // where given: the position of each id in the caller's batch
  };
  // Puts the positions of batches' ids in order, as positions() says: what device_update.h needs. Of several batches, each kernel is
  // launched once a pass.
  static void sort(std::span<const Input> batches, Stream stream);
  // Of batches whose ids are in the order of tables: where the distinct ids of each begin, and where the last ones end. `id_bounds`:
  // the same of ids. REQUIRES: sort() of the batch.
  struct Bounds {
    const Input* of;
    Global<const uint32_t> id_bounds;
    Global<uint32_t> bounds;
    Global<uint32_t> bounds_on_host;  // likewise, in pinned memory
  };
  static void find_bounds(std::span<const Bounds> batches, Stream stream);
  // Which distinct ids: `count`, one number that the device reaches, says how many.
  struct Chosen {
    Global<const uint32_t> numbers;
    Global<const uint32_t> count;
  };
  // What is told of each that was chosen: its sum, of `dim` floats, how often it occurs and where it does last. In device
  // memory, or pinned.
  struct Sums {
    Global<float> sums;
    Global<uint32_t> occurrences;
    Global<uint32_t> last_positions;
  };
  // `gradients`: a row of `dim` floats each of the ids. REQUIRES: sort() of the batch.
  struct Summed {
    Input of;
    DeviceAddress gradients;
    Chosen chosen;
    Sums to;
  };
  // Sums long runs of all distinct ids, and the gradients of those that are chosen.
  static void sum(std::span<const Summed> batches, Stream stream);

  // The part of sum() that others need who sum gradients themselves: see summed_gradient().
  void add_long_sums(uint32_t ids, DeviceAddress gradients_of_batch, Launches& launches) const;
  // As kernels take them; `floats`: those of sum().
  BatchGradients gradients(DeviceAddress floats) const;
  // Of the batch that was sorted last, by distinct id and then in order; and where those of each distinct id begin.
  Global<const uint32_t> positions() const { return sort_.positions(); }
  const DeviceArray<uint32_t>& begins() const { return begins_; }
  const DeviceArray<uint32_t>& ends() const { return ends_; }  // and end

 private:
  Device& device_;
  const uint32_t dim_;
  StableSort sort_;
  DeviceArray<uint32_t> begins_;
  DeviceArray<uint32_t> ends_;
  DeviceArray<uint32_t> long_runs_;
  DeviceArray<uint32_t> long_count_;
  DeviceArray<Float4> long_sums_;
};

}  // namespace embstore::gpu
