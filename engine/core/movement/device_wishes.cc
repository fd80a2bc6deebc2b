#include "movement/device_wishes.h"

#include <exception>
#include <memory>
#include <utility>

#include "gpu/buffers.h"

namespace embstore {

// The ids of one batch, on their way. Used again when its step has ended.
class DeviceWishes::Memory final : public StepInFlight {
 public:
  Memory(gpu::Device& device, uint32_t most) : StepInFlight(device), most_ids(most), ids(device, most) {}

  const uint32_t most_ids;
  gpu::PinnedArray<int64_t> ids;
};

DeviceWishes::~DeviceWishes() = default;

bool DeviceWishes::try_put(const IdsOnDevice& ids, TakeIds take) {
  DeviceSteps* const table = &steps_;
  DeviceSteps::Turns turn({&table, 1}, ids.stream, DeviceSteps::Effect::kUsesNone);
  if (turn.is_refused()) return false;
  const std::shared_ptr<Memory> memory =
      memories_.take(ids.count, [this](uint32_t most) { return std::make_shared<Memory>(device_, most); });
  const DeviceSteps::StepOfTable step{table, memory};
  turn.put({&step, 1}, ids.stream, [&] {
    device_.copy_to_host(memory->ids.data(), ids.ids, ids.count * sizeof(int64_t), ids.stream);
    // The stream never calls it if the device is lost, so it owns nothing.
    device_.call_host(
        [&memory = *memory, table, count = ids.count, take = std::move(take)] {
          const DeviceSteps::Function function({&table, 1});
          if (function.is_too_late()) return;
          try {
            take({memory.ids.data(), count});
          } catch (...) {
            table->keep_error(std::current_exception());
          }
        },
        ids.stream);
  });
  return true;
}

}  // namespace embstore
