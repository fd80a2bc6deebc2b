// Rows in a device's memory, by slot, and copies of them to and from batches. A row is laid out as RowLayout
// says: weights first, and every block padded to 16 bytes.
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

  // The rows of a batch, at most `most`.
  struct Batch {
    DeviceAddress rows;
    uint64_t most;
    Global<const uint32_t> slots;       // kNoSlot: this row is not copied
    Places places = {};                 // the places of these rows in `slots`
    Global<const uint32_t> order = {};  // see CopyRowsArguments
  };

  // gather() copies the first `floats` of each row (the weights, or the whole row) to the batch, where rows
  // follow each other; scatter() copies them back.
  void gather(const Batch& batch, uint32_t floats, Stream stream) const;
  void add_gather(const Batch& batch, uint32_t floats, Launches& launches) const;
  // REQUIRES: no slot twice.
  void scatter(const Batch& batch, uint32_t floats, Stream stream);

 private:
  void add_copy(const Kernel<CopyRowsArguments<Words4>>& by_vector,
                const Kernel<CopyRowsArguments<float>>& by_float, const Batch& batch, uint32_t floats,
                Launches& launches) const;
  template <class Unit>
  void add_copy(const Kernel<CopyRowsArguments<Unit>>& kernel, uint32_t unit_floats, const Batch& batch,
                uint32_t floats, Launches& launches) const;

  Device& device_;
  const uint32_t row_floats_;
  DeviceArray<float> floats_;
};

}  // namespace embstore::gpu
