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
#include "gpu/operations/mirror.h"

namespace embstore {

// What a look-up in flight needs, made for so many ids. Used again when its step has ended.
class DeviceLookUp::Memory final : public StepInFlight {
 public:
  Memory(gpu::Device& device, uint32_t most, uint32_t dim)
      : StepInFlight(device),
        most_ids(most),
        found(device, most),
        miss_count(device, 1),
        hit_count(device, 1),
        missing(device, most),
        positions(device, most),
        rows(device, uint64_t{most} * dim),
        beside(device),
        misses_are_known(device),
        misses_are_fetched(device) {}

  const uint32_t most_ids;
  gpu::FoundBatch found;
  gpu::PinnedArray<uint32_t> miss_count;
  gpu::PinnedArray<uint32_t> hit_count;  // of a part of the ids
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<uint32_t> positions;  // of the missing ids, if they are wanted
  gpu::PinnedArray<float> rows;          // of the missing ids
  const gpu::OwnedStream beside;         // on which those come, of all tables of the look-up
  const gpu::OwnedEvent misses_are_known;
  const gpu::OwnedEvent misses_are_fetched;
};

struct DeviceLookUp::ShareInFlight {
  size_t batch;  // its number
  DeviceLookUp* table;
  IdsOnDevice ids;
  gpu::DeviceAddress out;
  BatchPart part;
  std::optional<uint64_t> first_stamp;
  ReadMissing read;
  std::shared_ptr<Memory> memory;
};

// What the stream's function is called with. The stream never calls it if the device is lost, so it owns no memory.
struct DeviceLookUp::MissesOfTable {
  size_t batch;
  DeviceSteps* steps;
  const Memory* memory;
  uint32_t id_count;
  bool is_of_all_ids;
  bool is_served;
  size_t dim;
  ReadMissing read;

  Missing missing() const;
};

namespace {

void fill_with_nan(float* row, size_t floats) {
  std::fill_n(row, floats, std::numeric_limits<float>::quiet_NaN());
}

void forget_rows(std::span<const int64_t> missing, const std::vector<int64_t>& keys, size_t dim,
                 float* rows) {
  const std::unordered_set<int64_t> lost(keys.begin(), keys.end());
  for (size_t i = 0; i < missing.size(); ++i) {
    if (lost.contains(missing[i])) fill_with_nan(rows + i * dim, dim);
  }
}

}  // namespace

DeviceLookUp::DeviceLookUp(HbmTier& tier, DeviceSteps& steps, size_t dim)
    : tier_(tier), device_(tier.device()), steps_(steps), dim_(static_cast<uint32_t>(dim)) {}

DeviceLookUp::~DeviceLookUp() = default;

bool DeviceLookUp::try_put(std::span<Batch> batches) {
  const gpu::Stream stream = batches.front().ids.stream;
  std::vector<DeviceSteps*> tables;
  for (const Batch& batch : batches) {
    for (const Share& share : batch.shares) tables.push_back(&share.table->steps_);
  }
  DeviceSteps::Turns turns(tables, stream, DeviceSteps::Effect::kReads);
  if (turns.is_refused()) return false;
  std::vector<ShareInFlight> in_flight;
  std::vector<DeviceSteps::StepOfTable> steps;
  for (size_t number = 0; number < batches.size(); ++number) {
    const Batch& batch = batches[number];
    for (const Share& share : batch.shares) {
      DeviceLookUp& of = *share.table;
      of.tier_.join(stream);
      std::shared_ptr<Memory> memory = of.memories_.take(batch.ids.count, [&of](uint32_t most) {
        return std::make_shared<Memory>(of.device_, most, of.dim_);
      });
      steps.push_back({&of.steps_, memory});
      in_flight.push_back(
          {number, &of, batch.ids, batch.out, share.part, share.first_stamp, share.read, std::move(memory)});
    }
  }
  turns.put(steps, stream, [&] { put(in_flight, stream); });
  return true;
}

void DeviceLookUp::put(std::span<ShareInFlight> shares, gpu::Stream stream) {
  const ShareInFlight& first = shares.front();
  gpu::Device& device = first.table->device_;
  find(shares, stream);
  device.record(first.memory->misses_are_known, stream);
  device.wait(first.memory->beside, first.memory->misses_are_known);
  try {
    put_misses(shares);
    copy_found(shares, stream);
  } catch (...) {
    gpu::ignoring_a_lost_device([&] { wait_for_misses(first, stream); });
    throw;
  }
  wait_for_misses(first, stream);
}

void DeviceLookUp::find(std::span<const ShareInFlight> shares, gpu::Stream stream) {
  std::vector<gpu::FoundBatch::Input> inputs;
  for (const ShareInFlight& share : shares) {
    Memory& memory = *share.memory;
    gpu::FoundBatch::Input& input = inputs.emplace_back();
    input = {.to = &memory.found,
             .mirror = &share.table->tier_.mirror(),
             .ids = {share.ids.ids, share.ids.count},
             .part = share.part,
             .missing_ids = memory.missing.global(),
             .miss_count_on_host = memory.miss_count.global()};
    if (!share.part.is_all()) input.hit_count_on_host = memory.hit_count.global();
    if (share.first_stamp) input.missing_positions_on_host = memory.positions.global();
  }
  gpu::FoundBatch::find(inputs, stream);
}

void DeviceLookUp::copy_found(std::span<const ShareInFlight> shares, gpu::Stream stream) {
  gpu::Launches launches;
  for (const ShareInFlight& share : shares) {
    HbmTier& tier = share.table->tier_;
    const gpu::Global<const uint32_t> slots = share.memory->found.slots().first(share.ids.count).as_const();
    tier.rows().add_gather({share.out, share.ids.count, slots}, share.table->dim_, launches);
    if (share.first_stamp) tier.ranks_to_count().add_hits(slots, *share.first_stamp, launches);
  }
  launches.put(shares.front().table->device_, stream);
}

void DeviceLookUp::put_misses(std::span<ShareInFlight> shares) {
  gpu::Device& device = shares.front().table->device_;
  const gpu::Stream beside = shares.front().memory->beside;
  std::vector<MissesOfTable> of_tables;
  gpu::Launches launches;
  for (ShareInFlight& share : shares) {
    const uint32_t dim = share.table->dim_;
    of_tables.push_back({.batch = share.batch,
                         .steps = &share.table->steps_,
                         .memory = share.memory.get(),
                         .id_count = share.ids.count,
                         .is_of_all_ids = share.part.is_all(),
                         .is_served = share.first_stamp.has_value(),
                         .dim = dim,
                         .read = std::move(share.read)});
    const gpu::FoundBatch& found = share.memory->found;
    gpu::add_fetch(share.memory->rows.global().as_const(),
                   found.missing_positions().first(share.ids.count).as_const(), found.miss_count().constant(),
                   {share.out, uint64_t{share.ids.count} * dim}, dim, launches);
  }
  device.call_host([of_tables = std::move(of_tables)] { read_missing(of_tables); }, beside);
  launches.put(device, beside);
}

void DeviceLookUp::wait_for_misses(const ShareInFlight& first, gpu::Stream stream) {
  gpu::Device& device = first.table->device_;
  device.record(first.memory->misses_are_fetched, first.memory->beside);
  device.wait(stream, first.memory->misses_are_fetched);
}

DeviceLookUp::Missing DeviceLookUp::MissesOfTable::missing() const {
  const uint32_t count = memory->miss_count[0];
  return {.ids = {memory->missing.data(), count},
          .positions = {memory->positions.data(), is_served ? count : 0},
          .hits = is_of_all_ids ? id_count - count : memory->hit_count[0]};
}

void DeviceLookUp::read_missing(std::span<const MissesOfTable> of_tables) {
  std::vector<DeviceSteps*> tables;
  for (const MissesOfTable& one : of_tables) tables.push_back(one.steps);
  const DeviceSteps::Function function(tables);
  if (function.is_too_late()) return;
  std::optional<size_t> failed;  // the last batch of which a table has kept its error
  const auto keep_first_error = [&failed](const MissesOfTable& of) {
    if (failed != of.batch) of.steps->keep_error(std::current_exception());
    failed = of.batch;
  };
  for (const MissesOfTable& one : of_tables) {
    const Missing missing = one.missing();
    float* const rows = one.memory->rows.data();
    try {
      one.steps->check_not_used_by_thread();
      one.read(missing, rows);
    } catch (const DamagedRowsError& error) {
      forget_rows(missing.ids, error.keys(), one.dim, rows);
      keep_first_error(one);
    } catch (...) {
      fill_with_nan(rows, missing.ids.size() * one.dim);
      keep_first_error(one);
    }
  }
}

}  // namespace embstore
