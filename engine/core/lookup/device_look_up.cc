#include "lookup/device_look_up.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "gpu/buffers.h"
#include "gpu/operations/count_on_device.h"
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
        id_count(device),
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
  gpu::CountOnDevice id_count;
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
  DeviceLookUp* table;
  BatchPart part;
  std::optional<uint64_t> first_stamp;
  ReadMissing read;
  std::shared_ptr<Memory> memory;
};

// What the stream's function is called with. The stream never calls it if the device is lost, so it owns no memory.
struct DeviceLookUp::MissesOfTable {
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

bool DeviceLookUp::try_put(std::span<Share> shares, const IdsOnDevice& ids, gpu::DeviceAddress out) {
  std::vector<DeviceSteps*> tables;
  for (const Share& share : shares) tables.push_back(&share.table->steps_);
  DeviceSteps::Turns turns(tables, ids.stream, DeviceSteps::Effect::kReads);
  if (turns.is_refused()) return false;
  std::vector<ShareInFlight> in_flight;
  std::vector<DeviceSteps::StepOfTable> steps;
  for (Share& share : shares) {
    DeviceLookUp& of = *share.table;
    of.tier_.join(ids.stream);
    std::shared_ptr<Memory> memory = of.memories_.take(
        ids.count, [&of](uint32_t most) { return std::make_shared<Memory>(of.device_, most, of.dim_); });
    steps.push_back({&of.steps_, memory});
    in_flight.push_back({&of, share.part, share.first_stamp, std::move(share.read), std::move(memory)});
  }
  turns.put(steps, ids.stream, [&] { put(in_flight, ids, out); });
  return true;
}

void DeviceLookUp::put(std::span<ShareInFlight> shares, const IdsOnDevice& ids, gpu::DeviceAddress out) {
  const ShareInFlight& first = shares.front();
  gpu::Device& device = first.table->device_;
  for (const ShareInFlight& share : shares) share.table->find(share, ids);
  device.record(first.memory->misses_are_known, ids.stream);
  device.wait(first.memory->beside, first.memory->misses_are_known);
  try {
    put_misses(shares, ids.count, out);
    for (const ShareInFlight& share : shares) share.table->copy_found(share, ids, out);
  } catch (...) {
    gpu::ignoring_a_lost_device([&] { wait_for_misses(first, ids.stream); });
    throw;
  }
  wait_for_misses(first, ids.stream);
}

void DeviceLookUp::find(const ShareInFlight& share, const IdsOnDevice& ids) {
  Memory& memory = *share.memory;
  const gpu::Global<const uint32_t> id_count = memory.id_count.set(ids.count, ids.stream);
  memory.found.find(tier_.mirror(), {ids.ids, ids.count}, id_count, memory.missing.global(), share.part,
                    ids.stream);
  const gpu::FoundBatch& found = memory.found;
  found.miss_count().copy_to(memory.miss_count.data(), 1, ids.stream);
  if (!share.part.is_all()) found.hit_count().copy_to(memory.hit_count.data(), 1, ids.stream);
  if (share.first_stamp) found.missing_positions().copy_to(memory.positions.data(), ids.count, ids.stream);
}

void DeviceLookUp::copy_found(const ShareInFlight& share, const IdsOnDevice& ids, gpu::DeviceAddress out) {
  Memory& memory = *share.memory;
  const gpu::Global<const uint32_t> slots = memory.found.slots().first(ids.count).as_const();
  const gpu::Global<const uint32_t> id_count = memory.id_count.set(ids.count, ids.stream);
  tier_.rows().gather({out, ids.count, slots, id_count}, dim_, ids.stream);
  if (share.first_stamp) tier_.ranks_to_count().count_hits(slots, *share.first_stamp, ids.stream);
}

void DeviceLookUp::put_misses(std::span<ShareInFlight> shares, uint32_t count, gpu::DeviceAddress out) {
  gpu::Device& device = shares.front().table->device_;
  const gpu::Stream beside = shares.front().memory->beside;
  std::vector<MissesOfTable> of_tables;
  for (ShareInFlight& share : shares) {
    of_tables.push_back({.steps = &share.table->steps_,
                         .memory = share.memory.get(),
                         .id_count = count,
                         .is_of_all_ids = share.part.is_all(),
                         .is_served = share.first_stamp.has_value(),
                         .dim = share.table->dim_,
                         .read = std::move(share.read)});
  }
  device.call_host([of_tables = std::move(of_tables)] { read_missing(of_tables); }, beside);
  for (const ShareInFlight& share : shares) {
    const DeviceLookUp& of = *share.table;
    const gpu::FoundBatch& found = share.memory->found;
    gpu::fetch_rows_into(device, share.memory->rows.global().as_const(),
                         found.missing_positions().first(count).as_const(), found.miss_count().constant(),
                         {out, uint64_t{count} * of.dim_}, of.dim_, beside);
  }
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
  bool has_failed = false;
  const auto keep_first_error = [&has_failed](DeviceSteps& steps) {
    if (!std::exchange(has_failed, true)) steps.keep_error(std::current_exception());
  };
  for (const MissesOfTable& one : of_tables) {
    const Missing missing = one.missing();
    float* const rows = one.memory->rows.data();
    try {
      one.steps->check_not_used_by_thread();
      one.read(missing, rows);
    } catch (const DamagedRowsError& error) {
      forget_rows(missing.ids, error.keys(), one.dim, rows);
      keep_first_error(*one.steps);
    } catch (...) {
      fill_with_nan(rows, missing.ids.size() * one.dim);
      keep_first_error(*one.steps);
    }
  }
}

}  // namespace embstore
