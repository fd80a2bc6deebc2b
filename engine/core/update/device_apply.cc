#include "update/device_apply.h"

#include <exception>
#include <optional>
#include <utility>

#include "gpu/buffers.h"
#include "gpu/operations/device_update.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/mirror.h"
#include "gpu/operations/unique_batch.h"

namespace embstore {

// What an update in flight needs, made for so many ids. Used again when its step has ended.
class DeviceApply::Memory final : public StepInFlight {
 public:
  Memory(gpu::Device& device, uint32_t most, uint32_t dim, bool any_marks)
      : StepInFlight(device),
        most_ids(most),
        unique(device, most),
        sorted(device, most, dim),
        found(device, most),
        distinct(device, 1),
        miss_count(device, 1),
        refused(device, 1),
        missing(device, most),
        occurrences(device, most),
        last_positions(device, most),
        sums(device, uint64_t{most} * dim),
        marked(device, any_marks ? most : 0),
        marked_count(device, 1),
        marked_count_on_device(device, 1),
        to_update(device, 1),
        to_update_on_device(device, 1) {}

  const uint32_t most_ids;
  gpu::UniqueBatch unique;
  gpu::GradientSums sorted;
  gpu::FoundBatch found;
  gpu::PinnedArray<uint32_t> distinct;  // how many ids
  gpu::PinnedArray<uint32_t> miss_count;
  gpu::PinnedArray<int64_t> refused;  // the number of a reason, or 0
  // Of the missing ids.
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<uint32_t> occurrences;
  gpu::PinnedArray<uint32_t> last_positions;
  gpu::PinnedArray<float> sums;
  // Of the rows that the tier has.
  gpu::PinnedArray<Slot> marked;
  gpu::PinnedArray<uint32_t> marked_count;
  gpu::DeviceArray<uint32_t> marked_count_on_device;
  std::optional<StepClaims> claims;
  // How many distinct ids' rows kernels may update: all of them, or none.
  gpu::PinnedArray<uint32_t> to_update;
  gpu::DeviceArray<uint32_t> to_update_on_device;
};

DeviceApply::DeviceApply(HbmTier& tier, DeviceSteps& steps, const RowLayout& layout)
    : tier_(tier), device_(tier.device()), steps_(steps), dim_(static_cast<uint32_t>(layout.dim())) {}

DeviceApply::~DeviceApply() = default;

bool DeviceApply::try_put(const IdsOnDevice& ids, gpu::DeviceAddress gradients, BatchConditions conditions,
                          StepClaims claims, const std::function<Update()>& begin) {
  DeviceSteps::Turn turn(steps_, ids.stream, DeviceSteps::Effect::kChanges);
  if (turn.is_refused()) return false;
  tier_.join(ids.stream);
  const std::shared_ptr<Memory> memory = memories_.take(ids.count, [this](uint32_t most) {
    return std::make_shared<Memory>(device_, most, dim_, tier_.marks() != nullptr);
  });
  memory->claims.emplace(std::move(claims));
  turn.put(memory, ids.stream, [&] { put(*memory, ids, gradients, std::move(conditions), begin()); });
  return true;
}

void DeviceApply::put(Memory& memory, const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                      BatchConditions conditions, Update update) {
  const gpu::Stream stream = ids.stream;
  memory.unique.make_unique({ids.ids, ids.count}, stream, {conditions.kept, conditions.kept ? ids.count : 0});
  memory.sorted.sort(memory.unique, ids.count, stream);
  const gpu::Global<const uint32_t> distinct = memory.unique.count().constant();
  memory.found.find(tier_.mirror(), memory.unique.keys().first(ids.count).as_const(), distinct,
                    memory.missing.global(), stream);
  const gpu::FoundBatch& found = memory.found;
  memory.sorted.sum(memory.unique, ids.count, gradients,
                    {found.missing_positions().first(ids.count).as_const(), found.miss_count().constant()},
                    {memory.sums.global(), memory.occurrences.global(), memory.last_positions.global()},
                    stream);
  memory.unique.count().copy_to(memory.distinct.data(), 1, stream);
  found.miss_count().copy_to(memory.miss_count.data(), 1, stream);
  const gpu::Global<const uint32_t> slots = found.slots().first(ids.count).as_const();
  gpu::SlotMarks* const marks = tier_.marks();
  memory.marked_count[0] = 0;
  if (marks != nullptr) {
    marks->list(slots, distinct, memory.marked.global(), memory.marked_count_on_device, stream);
    memory.marked_count_on_device.copy_to(memory.marked_count.data(), 1, stream);
  }
  memory.refused[0] = 0;
  if (conditions.refused) {
    device_.copy_to_host(memory.refused.data(), conditions.refused, sizeof(int64_t), stream);
  }
  // The stream never calls it if the device is lost, so it owns nothing.
  device_.call_host(
      [&memory, conditions = std::move(conditions), missing = std::move(update.update_missing),
       &steps = steps_] {
        const DeviceSteps::Function function(steps);
        if (!function.is_too_late()) update_missing(memory, conditions, missing, steps);
      },
      stream);
  memory.to_update_on_device.copy_from(memory.to_update.data(), 1, stream);
  const gpu::Global<const uint32_t> count = memory.to_update_on_device.constant();
  if (marks != nullptr) marks->set(false, slots, count, stream);
  gpu::DeviceUpdate(slots, count, memory.unique, memory.sorted, gradients, dim_)
      .launch(device_, update.step, tier_.rows_to_change(), stream);
  tier_.ranks_to_count().count_update(slots, count, memory.unique, memory.sorted, update.counted, stream);
}

void DeviceApply::update_missing(Memory& memory, const BatchConditions& conditions,
                                 const UpdateMissing& update, DeviceSteps& steps) {
  const uint32_t missing = memory.miss_count[0];
  try {
    steps.check_not_used_by_thread();
    conditions.check(memory.refused[0]);
    update({.ids = {memory.missing.data(), missing},
            .gradients = memory.sums.data(),
            .occurrences = {memory.occurrences.data(), missing},
            .last_positions = {memory.last_positions.data(), missing}},
           {.count = memory.distinct[0] - missing, .marked = {memory.marked.data(), memory.marked_count[0]}},
           *memory.claims);
    memory.to_update[0] = memory.distinct[0];
  } catch (...) {
    memory.to_update[0] = 0;
    steps.keep_error(std::current_exception());
  }
  memory.claims.reset();
}

}  // namespace embstore
