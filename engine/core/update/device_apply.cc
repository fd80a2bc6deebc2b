#include "update/device_apply.h"

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/scan.h"
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
  size_t batch;  // its number
  DeviceApply* table;
  IdsOnDevice ids;
  gpu::DeviceAddress gradients;
  BatchPart part;
  std::function<Update()> begin;
  std::shared_ptr<Memory> memory;

  gpu::GradientSums::Input sorted() const { return {&memory->sorted, &memory->unique, ids.count}; }
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
struct DeviceApply::MissesOfBatch {
  BatchConditions conditions;
  std::vector<MissesOfTable> of_tables;
};

bool DeviceApply::try_put(std::span<Batch> batches) {
  const gpu::Stream stream = batches.front().ids.stream;
  std::vector<DeviceSteps*> tables;
  for (const Batch& batch : batches) {
    for (const Share& share : batch.shares) tables.push_back(&share.table->steps_);
  }
  DeviceSteps::Turns turns(tables, stream, DeviceSteps::Effect::kChanges);
  if (turns.is_refused()) return false;
  std::vector<ShareInFlight> in_flight;
  std::vector<DeviceSteps::StepOfTable> steps;
  for (size_t number = 0; number < batches.size(); ++number) {
    Batch& batch = batches[number];
    for (Share& share : batch.shares) {
      DeviceApply& of = *share.table;
      of.tier_.join(stream);
      std::shared_ptr<Memory> memory = of.memories_.take(batch.ids.count, [&of](uint32_t most) {
        return std::make_shared<Memory>(of.device_, most, of.dim_, of.tier_.marks() != nullptr);
      });
      memory->claims.emplace(std::move(share.claims));
      steps.push_back({&of.steps_, memory});
      in_flight.push_back(
          {number, &of, batch.ids, batch.gradients, share.part, std::move(share.begin), std::move(memory)});
    }
  }
  turns.put(steps, stream, [&] { put(in_flight, batches); });
  return true;
}

void DeviceApply::put(std::span<const ShareInFlight> shares, std::span<Batch> batches) {
  const gpu::Stream stream = shares.front().ids.stream;
  gpu::Device& device = shares.front().table->device_;
  std::vector<Update> updates;
  for (const ShareInFlight& share : shares) updates.push_back(share.begin());
  find(shares, batches);
  std::vector<MissesOfBatch> misses(batches.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    misses[shares[i].batch].of_tables.push_back(
        {&shares[i].table->steps_, shares[i].memory.get(), std::move(updates[i].prepare_rows)});
  }
  for (size_t number = 0; number < batches.size(); ++number) {
    const gpu::PinnedArray<int64_t>& refused = misses[number].of_tables.front().memory->refused;
    misses[number].conditions = std::move(batches[number].conditions);
    refused[0] = 0;
    if (const gpu::DeviceAddress of = misses[number].conditions.refused) {
      device.copy_to_host(refused.data(), of, sizeof(int64_t), stream);
    }
  }
  device.call_host([misses = std::move(misses)] { update_missing(misses); }, stream);
  update_found(shares, updates, stream);
}

void DeviceApply::find(std::span<const ShareInFlight> shares, std::span<const Batch> batches) {
  const gpu::Stream stream = shares.front().ids.stream;
  std::vector<gpu::UniqueBatch::Input> unique;
  std::vector<gpu::GradientSums::Input> sorted;
  std::vector<gpu::FoundBatch::Input> found;
  std::vector<gpu::GradientSums::Summed> summed;
  for (const ShareInFlight& share : shares) {
    Memory& memory = *share.memory;
    const uint32_t ids = share.ids.count;
    const gpu::DeviceAddress kept = batches[share.batch].conditions.kept;
    unique.push_back({.to = &memory.unique,
                      .ids = {share.ids.ids, ids},
                      .kept = {kept, kept ? ids : 0},
                      .part = share.part,
                      .count_on_host = memory.distinct.global()});
    sorted.push_back(share.sorted());
    // All distinct ids are in the part.
    found.push_back({.to = &memory.found,
                     .mirror = &share.table->tier_.mirror(),
                     .ids = memory.unique.keys().first(ids).as_const(),
                     .id_count = memory.unique.count().constant(),
                     .missing_ids = memory.missing.global(),
                     .miss_count_on_host = memory.miss_count.global()});
    summed.push_back(
        {share.sorted(),
         share.gradients,
         {memory.found.missing_positions().first(ids).as_const(), memory.found.miss_count().constant()},
         {memory.sums.global(), memory.occurrences.global(), memory.last_positions.global()}});
  }
  gpu::UniqueBatch::make_unique(unique, stream);
  gpu::GradientSums::sort(sorted, stream);
  gpu::FoundBatch::find(found, stream);
  gpu::GradientSums::sum(summed, stream);
  list_marked(shares, stream);
}

void DeviceApply::list_marked(std::span<const ShareInFlight> shares, gpu::Stream stream) {
  gpu::Device& device = shares.front().table->device_;
  std::vector<const ShareInFlight*> above_pools;
  for (const ShareInFlight& share : shares) {
    share.memory->marked_count[0] = 0;
    if (share.table->tier_.marks() != nullptr) above_pools.push_back(&share);
  }
  gpu::Launches launches;
  const auto copy_counts = [&](auto from, auto to) {
    for (const ShareInFlight* share : above_pools) {
      launches.add(gpu::copy_count, {1, 1}, {from(*share->memory).as_const(), to(*share->memory)});
    }
    launches.put(device, stream);
  };
  const auto of_host = [](const Memory& memory) { return memory.marked_count.global(); };
  const auto of_device = [](const Memory& memory) { return memory.marked_count_on_device.global(); };
  copy_counts(of_host, of_device);
  for (const ShareInFlight* share : above_pools) {
    const Memory& memory = *share->memory;
    share->table->tier_.marks()->add_list(memory.found.slots().first(share->ids.count).as_const(),
                                          memory.unique.count().constant(), memory.marked.global(),
                                          of_device(memory), launches);
  }
  launches.put(device, stream);
  copy_counts(of_device, of_host);
}

void DeviceApply::update_found(std::span<const ShareInFlight> shares, std::span<const Update> updates,
                               gpu::Stream stream) {
  gpu::Device& device = shares.front().table->device_;
  gpu::Launches launches;
  for (const ShareInFlight& share : shares) {
    launches.add(gpu::copy_count, {1, 1},
                 {share.memory->to_update.global().as_const(), share.memory->to_update_on_device.global()});
  }
  launches.put(device, stream);
  for (size_t i = 0; i < shares.size(); ++i) {
    const ShareInFlight& share = shares[i];
    const Memory& memory = *share.memory;
    HbmTier& tier = share.table->tier_;
    const gpu::Global<const uint32_t> count = memory.to_update_on_device.constant();
    const gpu::Global<const uint32_t> slots = memory.found.slots().first(share.ids.count).as_const();
    if (gpu::SlotMarks* const marks = tier.marks()) marks->add_set(false, slots, count, launches);
    gpu::DeviceUpdate(slots, count, memory.unique, memory.sorted, share.gradients, share.table->dim_)
        .add(updates[i].step, tier.rows_to_change(), launches);
    tier.ranks_to_count().add_update(slots, count, memory.unique, memory.sorted, updates[i].counted,
                                     launches);
  }
  launches.put(device, stream);
}

void DeviceApply::update_missing(std::span<const MissesOfBatch> batches) {
  std::vector<DeviceSteps*> tables;
  for (const MissesOfBatch& batch : batches) {
    for (const MissesOfTable& one : batch.of_tables) tables.push_back(one.steps);
  }
  const DeviceSteps::Function function(tables);
  if (function.is_too_late()) return;
  for (const MissesOfBatch& batch : batches) update_missing(batch);
}

void DeviceApply::update_missing(const MissesOfBatch& batch) {
  const std::vector<MissesOfTable>& of_tables = batch.of_tables;
  const MissesOfTable* at = &of_tables.front();
  bool is_applied = false;
  try {
    for (const MissesOfTable& one : of_tables) one.steps->check_not_used_by_thread();
    batch.conditions.check(at->memory->refused[0]);
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
