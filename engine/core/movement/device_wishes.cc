#include "movement/device_wishes.h"

#include <exception>
#include <memory>
#include <utility>

#include "gpu/buffers.h"

namespace embstore {

// The memory for the ids of one batch on their way to the host. Reused when the batch's step has
// ended.
class WishMemory final : public StepInFlight {
 public:
  WishMemory(gpu::Device& device, const StepSize& of) : StepInFlight(device), size(of), ids(device, of.ids) {}

  const StepSize size;
  gpu::PinnedArray<int64_t> ids;
};

DeviceWishes::~DeviceWishes() = default;

std::shared_ptr<WishMemory> DeviceWishes::make_memory(const StepSize& size) const {
  return std::make_shared<WishMemory>(device_, size);
}

bool DeviceWishes::try_put(Batch& batch) {
  return StepMaker::try_put(std::span<Batch>(&batch, 1), DeviceSteps::Effect::kUsesNone,
                            [](std::span<const InFlight<Batch>> batches) { put(batches.front()); });
}

void DeviceWishes::put(const InFlight<Batch>& one) {
  const IdsOnDevice& ids = one.batch->ids;
  const WishMemory& memory = *one.memory;
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
