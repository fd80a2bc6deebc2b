// Rows in a device's memory, by slot: copies of them to and from batches. A row is as RowLayout says: weights first, and
// every block padded to 16 bytes.
#pragma once

#include <cstdint>

#include "gpu/buffers.h"
#include "gpu/kernels/rows.h"
#include "gpu/operations/launches.h"

namespace embstore::gpu {

class DeviceRows {
 public:
  // REQUIRES: row_floats is a multiple of 4.
  DeviceRows(Device& device, uint32_t slots, uint32_t row_floats)
      : device_(device), row_floats_(row_floats), floats_(device, uint64_t{slots} * row_floats) {}

  uint32_t row_floats() const { return row_floats_; }
  const DeviceArray<float>& floats() const { return floats_; }

  // Which rows a batch has, of at most `most`.
  struct Batch {
    DeviceAddress rows;
    uint64_t most;
    Global<const uint32_t> slots;       // kNoSlot: the row stays as it is, there and here
    Places places = {};                 // of `slots`, those of these rows
    Global<const uint32_t> order = {};  // see CopyRowsArguments
  };

  // The first `floats` of each row, which follow each other in the batch: the weights, or all of the row.
  void gather(const Batch& batch, uint32_t floats, Stream stream) const {
    Launches launches;
    add_gather(batch, floats, launches);
    launches.put(device_, stream);
  }
  void add_gather(const Batch& batch, uint32_t floats, Launches& launches) const {
    add_copy(gather_rows, gather_floats, batch, floats, launches);
  }
  // REQUIRES: no slot twice.
  void scatter(const Batch& batch, uint32_t floats, Stream stream) {
    Launches launches;
    add_copy(scatter_rows, scatter_floats, batch, floats, launches);
    launches.put(device_, stream);
  }

 private:
  static constexpr uint32_t kVector = sizeof(Words4) / sizeof(float);

  void add_copy(const Kernel<CopyRowsArguments<Words4>>& by_vector,
                const Kernel<CopyRowsArguments<float>>& by_float, const Batch& batch, uint32_t floats,
                Launches& launches) const {
    if (batch.most == 0) return;
    if (floats % kVector == 0 && batch.rows.value % sizeof(Words4) == 0) {
      add_copy(by_vector, kVector, batch, floats, launches);
    } else {
      add_copy(by_float, 1, batch, floats, launches);
    }
  }
  template <class Unit>
  void add_copy(const Kernel<CopyRowsArguments<Unit>>& kernel, uint32_t unit_floats, const Batch& batch,
                uint32_t floats, Launches& launches) const {
    const uint32_t batch_units = floats / unit_floats;
    const Grid grid = Grid::over(batch.most * batch_units, kMostBlockThreads, batch.places.tables);
    launches.add(kernel, grid,
                 {{floats_.address(), floats_.count() / unit_floats},
                  row_floats_ / unit_floats,
                  batch.slots,
                  batch.places,
                  grid.blocks,
                  batch.order,
                  {batch.rows, batch.most * batch_units},
                  batch_units});
  }

  Device& device_;
  const uint32_t row_floats_;
  DeviceArray<float> floats_;
};

}  // namespace embstore::gpu
