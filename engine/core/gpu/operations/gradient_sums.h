// Groups the gradients of a batch by distinct id and sums them in the order of the batch, which gives the
// CPU's bits. The next batch uses the memory again, so each batch in flight needs a GradientSums of its own.
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
  GradientSums(Device& device, uint32_t max_ids, uint32_t dim, uint32_t sort_threads = kSortThreads);

  // A batch to sort into `to`. REQUIRES: `unique` was made of this number of ids.
  struct Input {
    GradientSums* to;
    const UniqueBatch* unique;
    uint32_t ids;
    Global<const uint32_t> order = {};  // if given: each id's position in the caller's batch
  };
  // Sorts the positions of each batch's ids, as positions() says; device_update.h needs that. Several batches
  // share a kernel launch in each pass.
  static void sort(std::span<const Input> batches, Stream stream);
  // For batches whose ids are in the order of tables: finds where each table's distinct ids begin, and where
  // the last table's end. `id_bounds` has the same bounds among the ids. REQUIRES: sort() of the batch.
  struct Bounds {
    const Input* batch;
    Global<const uint32_t> id_bounds;
    Global<uint32_t> bounds;
    Global<uint32_t> bounds_on_host;  // the same, in pinned memory
  };
  static void find_bounds(std::span<const Bounds> batches, Stream stream);
  // Distinct ids. `count` is one number that the device reaches: how many there are.
  struct Chosen {
    Global<const uint32_t> numbers;
    Global<const uint32_t> count;
  };
  // For each chosen id: the sum of its gradients (`dim` floats), how often it occurs, and the position of its
  // last occurrence. In device memory or pinned memory.
  struct Sums {
    Global<float> sums;
    Global<uint32_t> occurrences;
    Global<uint32_t> last_positions;
  };
  // `gradients` has rows of `dim` floats. REQUIRES: sort() of the batch.
  struct Summed {
    Input batch;
    GradientRows gradients;
    Chosen chosen;
    Sums to;
  };
  // Sums long runs of all distinct ids, and all gradients of the chosen ids.
  static void sum(std::span<const Summed> batches, Stream stream);

  // Sums the long runs alone, for kernels that sum the other gradients themselves: see summed_gradient().
  void add_long_sums(uint32_t ids, const GradientRows& rows, Launches& launches) const;
  // The gradients as kernels take them. `rows` is what sum() got.
  BatchGradients gradients(const GradientRows& rows) const;
  // The positions of the batch that was sorted last, by distinct id, in the batch's order for each; and where
  // those of each distinct id begin and end.
  Global<const uint32_t> positions() const { return sort_.positions(); }
  const DeviceArray<uint32_t>& begins() const { return begins_; }
  const DeviceArray<uint32_t>& ends() const { return ends_; }

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
