#include "gpu/operations/device_rows.h"

namespace embstore::gpu {

void DeviceRows::gather(const Batch& batch, uint32_t floats, Stream stream) const {
  Launches launches;
  add_gather(batch, floats, launches);
  launches.put(device_, stream);
}

void DeviceRows::add_gather(const Batch& batch, uint32_t floats, Launches& launches) const {
  add_copy(gather_rows, gather_floats, batch, floats, launches);
}

void DeviceRows::scatter(const Batch& batch, uint32_t floats, Stream stream) {
  Launches launches;
  add_copy(scatter_rows, scatter_floats, batch, floats, launches);
  launches.put(device_, stream);
}

void DeviceRows::add_copy(const Kernel<CopyRowsArguments<Words4>>& by_vector,
                          const Kernel<CopyRowsArguments<float>>& by_float, const Batch& batch,
                          uint32_t floats, Launches& launches) const {
  constexpr uint32_t kVector = sizeof(Words4) / sizeof(float);
  if (batch.most == 0) return;
  if (floats % kVector == 0 && batch.rows.value % sizeof(Words4) == 0) {
    add_copy(by_vector, kVector, batch, floats, launches);
  } else {
    add_copy(by_float, 1, batch, floats, launches);
  }
}

template <class Unit>
void DeviceRows::add_copy(const Kernel<CopyRowsArguments<Unit>>& kernel, uint32_t unit_floats,
                          const Batch& batch, uint32_t floats, Launches& launches) const {
  const uint32_t batch_units = floats / unit_floats;
  const Grid grid = Grid::over(batch.most * batch_units, kMaxBlockThreads, batch.places.tables);
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

}  // namespace embstore::gpu
