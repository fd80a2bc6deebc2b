#include "update/device_apply.h"

#include <exception>
#include <optional>
#include <utility>
#include <vector>

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

struct DeviceApply::ShareInFlight {
  DeviceApply* table;
  BatchPart part;
  std::function<Update()> begin;
  std::shared_ptr<Memory> memory;
};

// What the stream's function is called with. The stream never calls it if the device is lost, so it owns no memory.
struct DeviceApply::MissesOfTable {
  DeviceSteps* steps;
  Memory* memory;
  PrepareRows prepare;

  uint32_t distinct() const { return memory->distinct[0]; }
  Missing missing() const {
    const uint32_t count = memory->miss_count[0];
    return {.ids = {memory->missing.data(), count},
            .gradients = memory->sums.data(),
            .occurrences = {memory->occurrences.data(), count},
            .last_positions = {memory->last_positions.data(), count}};
  }
  Present present() const {
    return {.count = distinct() - memory->miss_count[0],
            .marked = {memory->marked.data(), memory->marked_count[0]}};
  }
};

bool DeviceApply::try_put(std::span<Share> shares, const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                          BatchConditions conditions) {
  std::vector<DeviceSteps*> tables;
  for (const Share& share : shares) tables.push_back(&share.table->steps_);
  DeviceSteps::Turns turns(tables, ids.stream, DeviceSteps::Effect::kChanges);
  if (turns.is_refused()) return false;
  std::vector<ShareInFlight> in_flight;
  std::vector<DeviceSteps::StepOfTable> steps;
  for (Share& share : shares) {
    DeviceApply& of = *share.table;
    of.tier_.join(ids.stream);
    std::shared_ptr<Memory> memory = of.memories_.take(ids.count, [&of](uint32_t most) {
      return std::make_shared<Memory>(of.device_, most, of.dim_, of.tier_.marks() != nullptr);
    });
    memory->claims.emplace(std::move(share.claims));
    steps.push_back({&of.steps_, memory});
    in_flight.push_back({&of, share.part, std::move(share.begin), std::move(memory)});
  }
  turns.put(steps, ids.stream, [&] { put(in_flight, ids, gradients, std::move(conditions)); });
  return true;
}

void DeviceApply::put(std::span<const ShareInFlight> shares, const IdsOnDevice& ids,
                      gpu::DeviceAddress gradients, BatchConditions conditions) {
  std::vector<Update> updates;
  for (const ShareInFlight& share : shares) updates.push_back(share.begin());
  for (const ShareInFlight& share : shares) share.table->find(share, ids, gradients, conditions);
  gpu::Device& device = shares.front().table->device_;
  gpu::PinnedArray<int64_t>& refused = shares.front().memory->refused;
  refused[0] = 0;
  if (conditions.refused) {
    device.copy_to_host(refused.data(), conditions.refused, sizeof(int64_t), ids.stream);
  }
  std::vector<MissesOfTable> of_tables;
  for (size_t i = 0; i < shares.size(); ++i) {
    of_tables.push_back(
        {&shares[i].table->steps_, shares[i].memory.get(), std::move(updates[i].prepare_rows)});
  }
  device.call_host([of_tables = std::move(of_tables),
                    conditions = std::move(conditions)] { update_missing(of_tables, conditions); },
                   ids.stream);
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].table->update_found(shares[i], updates[i], ids, gradients);
  }
}

void DeviceApply::find(const ShareInFlight& share, const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                       const BatchConditions& conditions) {
  Memory& memory = *share.memory;
  const gpu::Stream stream = ids.stream;
  memory.unique.make_unique({ids.ids, ids.count}, stream, {conditions.kept, conditions.kept ? ids.count : 0},
                            share.part);
  memory.sorted.sort(memory.unique, ids.count, stream);
  // All distinct ids are in the part.
  memory.found.find(tier_.mirror(), memory.unique.keys().first(ids.count).as_const(),
                    memory.unique.count().constant(), memory.missing.global(), {}, stream);
  const gpu::FoundBatch& found = memory.found;
  memory.sorted.sum(memory.unique, ids.count, gradients,
                    {found.missing_positions().first(ids.count).as_const(), found.miss_count().constant()},
                    {memory.sums.global(), memory.occurrences.global(), memory.last_positions.global()},
                    stream);
  memory.unique.count().copy_to(memory.distinct.data(), 1, stream);
  found.miss_count().copy_to(memory.miss_count.data(), 1, stream);
  memory.marked_count[0] = 0;
  if (const gpu::SlotMarks* const marks = tier_.marks()) {
    marks->list(found.slots().first(ids.count).as_const(), memory.unique.count().constant(),
                memory.marked.global(), memory.marked_count_on_device, stream);
    memory.marked_count_on_device.copy_to(memory.marked_count.data(), 1, stream);
  }
}

void DeviceApply::update_found(const ShareInFlight& share, const Update& update, const IdsOnDevice& ids,
                               gpu::DeviceAddress gradients) {
  Memory& memory = *share.memory;
  const gpu::Stream stream = ids.stream;
  memory.to_update_on_device.copy_from(memory.to_update.data(), 1, stream);
  const gpu::Global<const uint32_t> count = memory.to_update_on_device.constant();
  const gpu::Global<const uint32_t> slots = memory.found.slots().first(ids.count).as_const();
  if (gpu::SlotMarks* const marks = tier_.marks()) marks->set(false, slots, count, stream);
  gpu::DeviceUpdate(slots, count, memory.unique, memory.sorted, gradients, dim_)
      .launch(device_, update.step, tier_.rows_to_change(), stream);
  tier_.ranks_to_count().count_update(slots, count, memory.unique, memory.sorted, update.counted, stream);
}

void DeviceApply::update_missing(std::span<const MissesOfTable> of_tables,
                                 const BatchConditions& conditions) {
  std::vector<DeviceSteps*> tables;
  for (const MissesOfTable& one : of_tables) tables.push_back(one.steps);
  const DeviceSteps::Function function(tables);
  if (function.is_too_late()) return;
  const MissesOfTable* at = &of_tables.front();
  bool is_applied = false;
  try {
    for (const MissesOfTable& one : of_tables) one.steps->check_not_used_by_thread();
    conditions.check(at->memory->refused[0]);
    std::vector<std::unique_ptr<PreparedRows>> prepared;
    for (const MissesOfTable& one : of_tables) {
      at = &one;
      prepared.push_back(one.prepare(one.missing(), one.present(), *one.memory->claims));
    }
    for (const auto& one : prepared) one->commit();
    is_applied = true;
  } catch (...) {
    at->steps->keep_error(std::current_exception());
  }
  for (const MissesOfTable& one : of_tables) {
    one.memory->to_update[0] = is_applied ? one.distinct() : 0;
    one.memory->claims.reset();
  }
}

}  // namespace embstore
