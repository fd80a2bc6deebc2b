#include "update/device_apply.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/buffers.h"
#include "gpu/kernels/scan.h"
#include "gpu/operations/device_update.h"
#include "gpu/operations/finite_gradients.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/ids_by_partition.h"
#include "gpu/operations/mirror.h"
#include "gpu/operations/unique_batch.h"

namespace embstore {

// The buffers of one batch in flight, for `size.ids` ids at most. They are reused when its step has ended.
class ApplyMemory final : public StepInFlight {
 public:
  ApplyMemory(gpu::Device& device, const StepSize& step_size, uint32_t row_dim, bool any_marks)
      : StepInFlight(device),
        size(step_size),
        dim(row_dim),
        unique(device, step_size.ids),
        sorted(device, step_size.ids, dim),
        found(device, step_size.ids),
        bounds(device, step_size.tables + 1),
        bounds_on_device(device, step_size.tables + 1),
        miss_bounds(device, step_size.tables + 1),
        refused(device, 1),
        not_finite(device, 1),
        left_out(device, 1),
        missing(device, step_size.ids),
        occurrences(device, step_size.ids),
        last_positions(device, step_size.ids),
        sums(device, uint64_t{step_size.ids} * dim),
        marked(device, any_marks ? step_size.ids : 0),
        marked_counts(device, step_size.tables),
        marked_counts_on_device(device, step_size.tables),
        to_update(device, step_size.tables + 1),
        to_update_on_device(device, step_size.tables + 1),
        steps(device, step_size.tables),
        steps_on_device(device, step_size.tables) {
    if (step_size.tables > 1) by_table.emplace(device, step_size.ids, step_size.tables);
    bounds[0] = 0;
    miss_bounds[0] = 0;
  }

  gpu::GradientSums::Input sort_input(uint32_t ids) {
    return {&sorted, &unique, ids, by_table ? by_table->order() : gpu::Global<const uint32_t>{}};
  }
  // A table's places in the list of distinct ids.
  gpu::Places places(uint32_t table) const {
    return by_table ? gpu::places_of(bounds_on_device.constant(), table)
                    : gpu::Places{.end = unique.count().constant()};
  }
  // The places among them whose rows kernels update: all or none.
  gpu::Places places_to_update(uint32_t table) const {
    return gpu::places_of(to_update_on_device.constant(), table);
  }
  gpu::Global<uint32_t> marked_count_on_device(uint32_t table) const {
    return {marked_counts_on_device.address() + table * sizeof(uint32_t), 1};
  }
  gpu::DeviceAddress step_on_device(uint32_t table) const {
    return steps_on_device.address() + table * sizeof(gpu::StepInMemory);
  }

  const StepSize size;
  const uint32_t dim;
  std::optional<gpu::IdsByPartition> by_table;  // orders the ids by table; empty if there is one table
  gpu::UniqueBatch unique;
  gpu::GradientSums sorted;
  gpu::FoundBatch found;
  // Where each table's places begin in the list of distinct ids; then the end. On the device if there are
  // several tables.
  gpu::PinnedArray<uint32_t> bounds;
  gpu::DeviceArray<uint32_t> bounds_on_device;
  gpu::PinnedArray<uint32_t> miss_bounds;  // the same for the missing ids
  gpu::PinnedArray<int64_t> refused;       // 0, or the number of a reason
  gpu::PinnedArray<uint32_t>
      not_finite;                      // the position of the first gradient that isn't finite, or kAllFinite
  gpu::PinnedArray<int64_t> left_out;  // 0: the batch isn't left out
  // For each missing id:
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<uint32_t> occurrences;
  gpu::PinnedArray<uint32_t> last_positions;
  gpu::PinnedArray<float> sums;
  // The slots of marked rows in the tiers. A table's begin at bounds[table].
  gpu::PinnedArray<Slot> marked;
  gpu::PinnedArray<uint32_t> marked_counts;  // for each table
  gpu::DeviceArray<uint32_t> marked_counts_on_device;
  std::vector<StepClaims> claims;  // for each table
  // `bounds` if kernels may update rows, else zeros.
  gpu::PinnedArray<uint32_t> to_update;
  gpu::DeviceArray<uint32_t> to_update_on_device;
  // The optimizer's step for each table.
  gpu::PinnedArray<gpu::StepInMemory> steps;
  gpu::DeviceArray<gpu::StepInMemory> steps_on_device;
};

DeviceApply::DeviceApply(HbmTier& tier, DeviceSteps& steps, const RowLayout& layout)
    : StepMaker(tier, steps), dim_(static_cast<uint32_t>(layout.dim())) {}

DeviceApply::~DeviceApply() = default;

std::shared_ptr<ApplyMemory> DeviceApply::make_memory(const StepSize& size) const {
  return std::make_shared<ApplyMemory>(device_, size, dim_, tier_.marks() != nullptr);
}

// The argument of the host function. It owns no memory, since the stream never calls the function if the
// device is lost.
struct DeviceApply::MissesOfBatch {
  BatchConditions conditions;
  ApplyMemory* memory;
  std::vector<DeviceSteps*> tables;
  std::vector<Update> updates;  // for each table

  uint32_t misses(size_t table) const { return memory->miss_bounds[table + 1] - memory->miss_bounds[table]; }
  Missing missing(size_t table) const {
    const uint32_t begin = memory->miss_bounds[table];
    const uint32_t count = misses(table);
    return {.ids = {memory->missing.data() + begin, count},
            .gradients = memory->sums.data() + uint64_t{begin} * memory->dim,
            .occurrences = {memory->occurrences.data() + begin, count},
            .last_positions = {memory->last_positions.data() + begin, count}};
  }
  Present present(size_t table) const {
    const uint32_t begin = memory->bounds[table];
    return {.count = memory->bounds[table + 1] - begin - misses(table),
            .marked = {memory->marked.data() + begin, memory->marked_counts[table]}};
  }
};

bool DeviceApply::try_put(std::span<Batch> batches) {
  return StepMaker::try_put(batches, DeviceSteps::Effect::kChanges, &DeviceApply::put,
                            [batches] { return try_claim_places(batches); });
}

// Claims a place for each id of each batch whose tier is above a pool; all or none.
bool DeviceApply::try_claim_places(std::span<Batch> batches) {
  for (Batch& batch : batches) {
    for (Share& share : batch.shares) {
      if (share.table->tier_.marks() == nullptr || share.claims.places.try_add(batch.ids.count)) continue;
      for (Batch& claimed_batch : batches) {
        for (Share& claimed : claimed_batch.shares) claimed.claims.places.give_back();
      }
      return false;
    }
  }
  return true;
}

void DeviceApply::put(std::span<const BatchInFlight> batches) {
  const gpu::Stream stream = batches.front().batch->ids.stream;
  gpu::Device& device = batches.front().batch->shares.front().table->device_;
  std::vector<Update> updates;
  for (const auto& [batch, memory] : batches) {
    memory->claims.clear();
    memory->not_finite[0] = gpu::kAllFinite;
    for (Share& share : batch->shares) {
      memory->claims.push_back(std::move(share.claims));
      updates.push_back(share.begin());
    }
  }
  find(batches, stream);
  std::vector<MissesOfBatch> misses;
  auto update = updates.cbegin();
  for (const auto& [batch, memory] : batches) {
    MissesOfBatch& batch_misses = misses.emplace_back();
    batch_misses.conditions = std::move(batch->conditions);
    batch_misses.memory = memory.get();
    for (const Share& share : batch->shares) {
      batch_misses.tables.push_back(&share.table->steps_);
      batch_misses.updates.push_back(*update++);
    }
    const auto copy_condition = [&](const gpu::PinnedArray<int64_t>& to, gpu::DeviceAddress from) {
      to[0] = 0;
      if (from) device.copy_to_host(to.data(), from, sizeof(int64_t), stream);
    };
    copy_condition(memory->refused, batch_misses.conditions.refused);
    copy_condition(memory->left_out, batch_misses.conditions.left_out);
  }
  device.call_host([misses = std::move(misses)] { update_missing(misses); }, stream);
  update_found(batches, updates, stream);
}

void DeviceApply::find(std::span<const BatchInFlight> batches, gpu::Stream stream) {
  std::vector<gpu::IdsByPartition::Input> partition_inputs;
  std::vector<gpu::UniqueBatch::Input> unique;
  gpu::Launches checks;
  for (const auto& [batch, memory] : batches) {
    const uint32_t count = batch->ids.count;
    const gpu::Global<const int64_t> ids{batch->ids.ids, count};
    const gpu::Global<const int64_t> kept{batch->conditions.kept, batch->conditions.kept ? count : 0};
    gpu::add_find_not_finite(batch->gradients, count, memory->dim, kept, memory->not_finite.global(), checks);
    if (memory->by_table) {
      partition_inputs.push_back({&*memory->by_table, ids, kept, {}});
      unique.push_back({.to = &memory->unique,
                        .ids = memory->by_table->ids().first(count).as_const(),
                        .id_count = memory->by_table->count()});
    } else {
      const gpu::Global<uint32_t> distinct{memory->bounds.global().address + sizeof(uint32_t), 1};
      unique.push_back({.to = &memory->unique, .ids = ids, .kept = kept, .count_on_host = distinct});
    }
  }
  checks.put(batches.front().batch->shares.front().table->device_, stream);
  gpu::IdsByPartition::partition(partition_inputs, stream);
  gpu::UniqueBatch::make_unique(unique, stream);

  std::vector<gpu::GradientSums::Input> sorted;
  for (const auto& [batch, memory] : batches) sorted.push_back(memory->sort_input(batch->ids.count));
  gpu::GradientSums::sort(sorted, stream);
  std::vector<gpu::GradientSums::Bounds> bounds;
  std::vector<gpu::FoundBatch::Input> found;
  std::vector<gpu::GradientSums::Summed> summed;
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto& [batch, memory] = batches[i];
    const uint32_t ids = batch->ids.count;
    gpu::FoundBatch::Input& input = found.emplace_back();
    input = {.to = &memory->found,
             .mirrors = {},
             .ids = memory->unique.keys().first(ids).as_const(),
             .id_count = memory->unique.count().constant(),
             .missing_ids = memory->missing.global(),
             .miss_bounds_on_host = memory->miss_bounds.global()};
    for (const Share& share : batch->shares) input.mirrors.push_back(&share.table->tier_.mirror());
    if (memory->by_table) {
      input.bounds = memory->bounds_on_device.constant();
      bounds.push_back({&sorted[i], memory->by_table->bounds(), memory->bounds_on_device.global(),
                        memory->bounds.global()});
    }
    summed.push_back(
        {sorted[i],
         batch->gradients,
         {memory->found.missing_places().first(ids).as_const(), memory->found.miss_count().constant()},
         {memory->sums.global(), memory->occurrences.global(), memory->last_positions.global()}});
  }
  gpu::GradientSums::find_bounds(bounds, stream);
  gpu::FoundBatch::find(found, stream);
  gpu::GradientSums::sum(summed, stream);
  list_marked(batches, stream);
}

void DeviceApply::list_marked(std::span<const BatchInFlight> batches, gpu::Stream stream) {
  gpu::Device& device = batches.front().batch->shares.front().table->device_;
  std::vector<const BatchInFlight*> above_pools;
  for (const BatchInFlight& one : batches) {
    const gpu::PinnedArray<uint32_t>& counts = one.memory->marked_counts;
    std::fill_n(counts.data(), counts.count(), 0);
    if (one.batch->shares.front().table->tier_.marks() != nullptr) above_pools.push_back(&one);
  }
  gpu::Launches launches;
  const auto copy_counts = [&](auto from, auto to) {
    for (const BatchInFlight* one : above_pools) {
      const gpu::Global<uint32_t> counts = to(*one->memory);
      launches.add(gpu::copy_words, gpu::Grid::of(counts.count, gpu::kMaxBlockThreads),
                   {from(*one->memory).as_const(), counts});
    }
    launches.put(device, stream);
  };
  const auto of_host = [](const ApplyMemory& memory) { return memory.marked_counts.global(); };
  const auto of_device = [](const ApplyMemory& memory) { return memory.marked_counts_on_device.global(); };
  copy_counts(of_host, of_device);
  for (const BatchInFlight* one : above_pools) {
    const ApplyMemory& memory = *one->memory;
    const gpu::Global<const uint32_t> slots = memory.found.slots().first(one->batch->ids.count).as_const();
    for (uint32_t t = 0; t < one->batch->shares.size(); ++t) {
      one->batch->shares[t].table->tier_.marks()->add_list(slots, memory.places(t), memory.marked.global(),
                                                           memory.marked_count_on_device(t), launches);
    }
  }
  launches.put(device, stream);
  copy_counts(of_device, of_host);
}

void DeviceApply::update_found(std::span<const BatchInFlight> batches, std::span<const Update> updates,
                               gpu::Stream stream) {
  gpu::Device& device = batches.front().batch->shares.front().table->device_;
  gpu::Launches launches;
  const auto add_copy = [&launches](gpu::DeviceAddress from, gpu::DeviceAddress to, uint64_t words) {
    launches.add(gpu::copy_words, gpu::Grid::of(words, gpu::kMaxBlockThreads), {{from, words}, {to, words}});
  };
  for (const auto& [batch, memory] : batches) {
    add_copy(memory->to_update.global().address, memory->to_update_on_device.address(),
             memory->to_update.count());
    add_copy(memory->steps.global().address, memory->steps_on_device.address(),
             memory->steps.count() * gpu::StepInMemory::kWords);
  }
  launches.put(device, stream);
  auto update = updates.begin();
  for (const auto& [batch, memory] : batches) {
    const gpu::Global<const uint32_t> slots = memory->found.slots().first(batch->ids.count).as_const();
    for (uint32_t t = 0; t < batch->shares.size(); ++t, ++update) {
      const DeviceApply& table = *batch->shares[t].table;
      HbmTier& tier = table.tier_;
      const gpu::Places places = memory->places_to_update(t);
      if (gpu::SlotMarks* const marks = tier.marks()) marks->add_set(false, slots, places, launches);
      gpu::DeviceUpdate(slots, places, memory->sorted, batch->gradients)
          .add(update->kind, memory->step_on_device(t), tier.rows_to_change(), launches);
      tier.ranks_to_count().add_update(slots, places, memory->sorted, update->counted, launches);
    }
  }
  launches.put(device, stream);
}

void DeviceApply::update_missing(std::span<const MissesOfBatch> batches) {
  std::vector<DeviceSteps*> tables;
  for (const MissesOfBatch& batch : batches) {
    tables.insert(tables.end(), batch.tables.begin(), batch.tables.end());
  }
  const DeviceSteps::Function function(tables);
  if (function.is_too_late()) return;
  for (const MissesOfBatch& batch : batches) update_missing(batch);
}

void DeviceApply::update_missing(const MissesOfBatch& batch) {
  ApplyMemory& memory = *batch.memory;
  size_t at = 0;
  bool is_applied = false;
  try {
    for (const DeviceSteps* table : batch.tables) table->check_not_used_by_thread();
    batch.conditions.check(memory.refused[0]);
    if (memory.left_out[0] == 0) {
      if (memory.not_finite[0] != gpu::kAllFinite) BatchConditions::refuse_not_finite(memory.not_finite[0]);
      std::vector<std::unique_ptr<PreparedRows>> prepared;
      for (size_t t = 0; t < batch.tables.size(); ++t) {
        at = t;
        prepared.push_back(
            batch.updates[t].prepare_rows(batch.missing(t), batch.present(t), memory.claims[t]));
      }
      for (size_t t = 0; t < prepared.size(); ++t) {
        memory.steps[t] = gpu::StepInMemory(batch.updates[t].begin());
        prepared[t]->commit();
      }
      is_applied = true;
    }
  } catch (...) {
    batch.tables[at]->keep_error(std::current_exception());
  }
  for (size_t bound = 0; bound <= batch.tables.size(); ++bound) {
    memory.to_update[bound] = is_applied ? memory.bounds[bound] : 0;
  }
  memory.claims.clear();
}

}  // namespace embstore
