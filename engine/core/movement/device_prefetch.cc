#include "movement/device_prefetch.h"

#include <exception>
#include <memory>
#include <utility>

#include "gpu/buffers.h"

namespace embstore {

// The memory for the ids of one batch on their way to the host. Reused when the batch's step has
// ended.
class PrefetchMemory final : public StepInFlight {
 public:
  PrefetchMemory(gpu::Device& device, const StepSize& step_size)
      : StepInFlight(device), size(step_size), ids(device, step_size.ids) {}

  const StepSize size;
  gpu::PinnedArray<int64_t> ids;
};

DevicePrefetch::~DevicePrefetch() = default;

std::shared_ptr<PrefetchMemory> DevicePrefetch::make_memory(const StepSize& size) const {
  return std::make_shared<PrefetchMemory>(device_, size);
}

bool DevicePrefetch::try_put(Batch& batch) {
  return StepMaker::try_put(std::span<Batch>(&batch, 1), DeviceSteps::Effect::kUsesNone,
                            [](std::span<const InFlight<Batch>> batches) { put(batches.front()); });
}

void DevicePrefetch::put(const InFlight<Batch>& one) {
  const IdsOnDevice& ids = one.batch->ids;
  const PrefetchMemory& memory = *one.memory;
  std::vector<DeviceSteps*> tables;
  for (const Share& share : one.batch->shares) tables.push_back(&share.table->steps_);
  gpu::Device& device = one.batch->shares.front().table->device_;
  device.copy_to_host(memory.ids.data(), ids.ids, ids.count * sizeof(int64_t), ids.stream);
  // The stream never calls the function if the device is lost, so the function owns nothing.
  device.call_host(
      [&memory, tables = std::move(tables), count = ids.count, take = std::move(one.batch->take)] {
        const DeviceSteps::Function function(tables);
        if (function.is_too_late()) return;
        try {
          take({memory.ids.data(), count});
        } catch (...) {
          tables.front()->keep_error(std::current_exception());
        }
      },
      ids.stream);
}

}  // namespace embstore
