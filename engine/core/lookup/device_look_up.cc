#include "lookup/device_look_up.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "gpu/buffers.h"
#include "gpu/operations/fetch_rows.h"
#include "gpu/operations/ids_by_partition.h"
#include "gpu/operations/mirror.h"

namespace embstore {

// The memory of one batch of a look-up in flight, made for `size.ids` ids. Reused when its step has ended.
class LookUpMemory final : public StepInFlight {
 public:
  LookUpMemory(gpu::Device& device, const StepSize& step_size, uint32_t dim)
      : StepInFlight(device),
        size(step_size),
        found(device, step_size.ids),
        id_bounds(device, step_size.tables + 1),
        miss_bounds(device, step_size.tables + 1),
        missing(device, step_size.ids),
        positions(device, step_size.ids),
        rows(device, uint64_t{step_size.ids} * dim),
        left_at(device, step_size.ids),
        beside(device),
        misses_are_known(device),
        misses_are_fetched(device) {
    if (step_size.tables > 1) by_table.emplace(device, step_size.ids, step_size.tables);
    id_bounds[0] = 0;
    miss_bounds[0] = 0;
  }

  // The order of the ids by tables. Empty if there is one table.
  gpu::Global<const uint32_t> order() const {
    return by_table ? by_table->order() : gpu::Global<const uint32_t>{};
  }
  gpu::Global<const uint32_t> bounds() const {
    return by_table ? by_table->bounds() : gpu::Global<const uint32_t>{};
  }
  gpu::Places places(uint32_t table) const {
    return by_table ? gpu::places_of(by_table->bounds(), table) : gpu::Places{};
  }

  const StepSize size;
  std::optional<gpu::IdsByPartition> by_table;
  gpu::FoundBatch found;
  // The start of each table's ids and misses, and the end of the last table's.
  gpu::PinnedArray<uint32_t> id_bounds;
  gpu::PinnedArray<uint32_t> miss_bounds;
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<uint32_t> positions;          // of the missing ids, if they are wanted
  gpu::PinnedArray<float> rows;                  // of the missing ids
  gpu::PinnedArray<gpu::DeviceAddress> left_at;  // the addresses of rows that the GPU reads where they lie
  const gpu::OwnedStream beside;                 // the stream for missing rows, of all batches of the look-up
  const gpu::OwnedEvent misses_are_known;
  const gpu::OwnedEvent misses_are_fetched;
};

// An argument of the stream's function, for one table. The stream never calls that function if the device is
// lost, so this owns no memory.
struct DeviceLookUp::MissesOfTable {
  size_t batch;
  DeviceSteps* steps;
  const LookUpMemory* memory;
  uint32_t table;
  bool is_served;
  size_t dim;
  ReadMissing read;

  uint32_t begin() const { return memory->miss_bounds[table]; }
  Missing missing() const {
    const uint32_t count = memory->miss_bounds[table + 1] - begin();
    const uint32_t ids = memory->id_bounds[table + 1] - memory->id_bounds[table];
    return {.ids = {memory->missing.data() + begin(), count},
            .positions = {memory->positions.data() + begin(), is_served ? count : 0},
            .hits = ids - count};
  }
  RowsOut rows() const { return {memory->rows.data() + begin() * dim, {}, memory->left_at.data() + begin()}; }
};

namespace {

void set_to_nan(size_t i, size_t dim, const RowsOut& rows) {
  rows.left_at[i] = {};
  std::fill_n(rows.rows + i * dim, dim, std::numeric_limits<float>::quiet_NaN());
}

void set_damaged_to_nan(std::span<const int64_t> missing, const std::vector<int64_t>& keys, size_t dim,
                        const RowsOut& rows) {
  const std::unordered_set<int64_t> lost(keys.begin(), keys.end());
  for (size_t i = 0; i < missing.size(); ++i) {
    if (lost.contains(missing[i])) set_to_nan(i, dim, rows);
  }
}

}  // namespace

DeviceLookUp::DeviceLookUp(HbmTier& tier, DeviceSteps& steps, size_t dim)
    : StepMaker(tier, steps), dim_(static_cast<uint32_t>(dim)) {}

DeviceLookUp::~DeviceLookUp() = default;

std::shared_ptr<LookUpMemory> DeviceLookUp::make_memory(const StepSize& size) const {
  return std::make_shared<LookUpMemory>(device_, size, dim_);
}

bool DeviceLookUp::try_put(std::span<Batch> batches) {
  return StepMaker::try_put(batches, DeviceSteps::Effect::kReads, &DeviceLookUp::put);
}

void DeviceLookUp::put(std::span<const BatchInFlight> batches) {
  const gpu::Stream stream = batches.front().batch->ids.stream;
  const LookUpMemory& first = *batches.front().memory;
  gpu::Device& device = batches.front().batch->shares.front().table->device_;
  find(batches, stream);
  device.record(first.misses_are_known, stream);
  device.wait(first.beside, first.misses_are_known);
  try {
    put_missing(batches);
    copy_found(batches, stream);
  } catch (...) {
    gpu::ignoring_a_lost_device([&] { wait_for_misses(first, device, stream); });
    throw;
  }
  wait_for_misses(first, device, stream);
}

void DeviceLookUp::find(std::span<const BatchInFlight> batches, gpu::Stream stream) {
  std::vector<gpu::IdsByPartition::Input> partition_inputs;
  std::vector<gpu::FoundBatch::Input> inputs;
  for (const auto& [batch, memory] : batches) {
    const uint32_t count = batch->ids.count;
    gpu::Global<const int64_t> ids{batch->ids.ids, count};
    if (memory->by_table) {
      partition_inputs.push_back({&*memory->by_table, ids, {}, memory->id_bounds.global()});
      ids = memory->by_table->ids().first(count).as_const();
    } else {
      memory->id_bounds[1] = count;
    }
    gpu::FoundBatch::Input& input = inputs.emplace_back();
    input = {.to = &memory->found,
             .mirrors = {},
             .ids = ids,
             .bounds = memory->bounds(),
             .missing_ids = memory->missing.global(),
             .miss_bounds_on_host = memory->miss_bounds.global()};
    for (const Share& share : batch->shares) input.mirrors.push_back(&share.table->tier_.mirror());
    if (batch->shares.front().first_stamp) input.positions_on_host = memory->positions.global();
  }
  gpu::IdsByPartition::partition(partition_inputs, stream);
  // Only from here on is it known where the ids are in the order of the tables.
  for (size_t i = 0; i < batches.size(); ++i) inputs[i].order = batches[i].memory->order();
  gpu::FoundBatch::find(inputs, stream);
}

void DeviceLookUp::copy_found(std::span<const BatchInFlight> batches, gpu::Stream stream) {
  gpu::Launches launches;
  for (const auto& [batch, memory] : batches) {
    const gpu::Global<const uint32_t> slots = memory->found.slots().first(batch->ids.count).as_const();
    for (uint32_t t = 0; t < batch->shares.size(); ++t) {
      const Share& share = batch->shares[t];
      HbmTier& tier = share.table->tier_;
      const gpu::Places places = memory->places(t);
      tier.rows().add_gather({batch->out, batch->ids.count, slots, places, memory->order()},
                             share.table->dim_, launches);
      if (share.first_stamp) {
        tier.ranks_to_count().add_hits(slots, places, memory->order(), *share.first_stamp, launches);
      }
    }
  }
  launches.put(batches.front().batch->shares.front().table->device_, stream);
}

void DeviceLookUp::put_missing(std::span<const BatchInFlight> batches) {
  gpu::Device& device = batches.front().batch->shares.front().table->device_;
  const gpu::Stream beside = batches.front().memory->beside;
  std::vector<MissesOfTable> table_misses;
  gpu::Launches launches;
  for (size_t number = 0; number < batches.size(); ++number) {
    const auto& [batch, memory] = batches[number];
    const uint32_t dim = batch->shares.front().table->dim_;
    for (uint32_t t = 0; t < batch->shares.size(); ++t) {
      Share& share = batch->shares[t];
      table_misses.push_back({.batch = number,
                              .steps = &share.table->steps_,
                              .memory = memory.get(),
                              .table = t,
                              .is_served = share.first_stamp.has_value(),
                              .dim = dim,
                              .read = std::move(share.read)});
    }
    const gpu::FoundBatch& found = memory->found;
    gpu::add_fetch({memory->rows.global().as_const(), memory->left_at.global().as_const()},
                   found.missing_places().first(batch->ids.count).as_const(), memory->order(),
                   found.miss_count().constant(), {batch->out, uint64_t{batch->ids.count} * dim}, dim,
                   launches);
  }
  device.call_host([table_misses = std::move(table_misses)] { read_missing(table_misses); }, beside);
  launches.put(device, beside);
}

void DeviceLookUp::wait_for_misses(const LookUpMemory& memory, gpu::Device& device, gpu::Stream stream) {
  device.record(memory.misses_are_fetched, memory.beside);
  device.wait(stream, memory.misses_are_fetched);
}

void DeviceLookUp::read_missing(std::span<const MissesOfTable> table_misses) {
  std::vector<DeviceSteps*> tables;
  for (const MissesOfTable& one : table_misses) tables.push_back(one.steps);
  const DeviceSteps::Function function(tables);
  if (function.is_too_late()) return;
  std::optional<size_t> failed;  // the last batch for which an error was kept
  const auto keep_first_error = [&failed](const MissesOfTable& misses) {
    if (failed != misses.batch) misses.steps->keep_error(std::current_exception());
    failed = misses.batch;
  };
  for (const MissesOfTable& one : table_misses) {
    const Missing missing = one.missing();
    const RowsOut rows = one.rows();
    try {
      one.steps->check_not_used_by_thread();
      one.read(missing, rows);
    } catch (const DamagedRowsError& error) {
      set_damaged_to_nan(missing.ids, error.keys(), one.dim, rows);
      keep_first_error(one);
    } catch (...) {
      for (size_t i = 0; i < missing.ids.size(); ++i) set_to_nan(i, one.dim, rows);
      keep_first_error(one);
    }
  }
}

}  // namespace embstore
