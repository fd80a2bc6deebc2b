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
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<uint32_t> positions;  // of the missing ids, if they are wanted
  gpu::PinnedArray<float> rows;          // of the missing ids
  const gpu::OwnedStream beside;         // on which those come
  const gpu::OwnedEvent misses_are_known;
  const gpu::OwnedEvent misses_are_fetched;
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

bool DeviceLookUp::try_put(const IdsOnDevice& ids, gpu::DeviceAddress out,
                           std::optional<uint64_t> first_stamp, ReadMissing read) {
  DeviceSteps::Turn turn(steps_, ids.stream, DeviceSteps::Effect::kReads);
  if (turn.is_refused()) return false;
  tier_.join(ids.stream);
  const std::shared_ptr<Memory> memory = memories_.take(
      ids.count, [this](uint32_t most) { return std::make_shared<Memory>(device_, most, dim_); });
  turn.put(memory, ids.stream, [&] { put(*memory, ids, out, first_stamp, std::move(read)); });
  return true;
}

void DeviceLookUp::put(Memory& memory, const IdsOnDevice& ids, gpu::DeviceAddress out,
                       std::optional<uint64_t> first_stamp, ReadMissing read) {
  const gpu::Stream stream = ids.stream;
  const gpu::FoundBatch& found = memory.found;
  const gpu::Global<const uint32_t> slots = found.slots().first(ids.count).as_const();
  const gpu::Global<const uint32_t> id_count = memory.id_count.set(ids.count, stream);
  memory.found.find(tier_.mirror(), {ids.ids, ids.count}, id_count, memory.missing.global(), stream);
  found.miss_count().copy_to(memory.miss_count.data(), 1, stream);
  if (first_stamp) found.missing_positions().copy_to(memory.positions.data(), ids.count, stream);
  device_.record(memory.misses_are_known, stream);
  device_.wait(memory.beside, memory.misses_are_known);
  try {
    put_misses(memory, ids.count, out, first_stamp.has_value(), std::move(read));
    tier_.rows().gather({out, ids.count, slots, id_count}, dim_, stream);
    if (first_stamp) tier_.ranks_to_count().count_hits(slots, *first_stamp, stream);
  } catch (...) {
    gpu::ignoring_a_lost_device([&] { wait_for_misses(memory, stream); });
    throw;
  }
  wait_for_misses(memory, stream);
}

void DeviceLookUp::put_misses(Memory& memory, uint32_t count, gpu::DeviceAddress out, bool is_served,
                              ReadMissing read) {
  const gpu::FoundBatch& found = memory.found;
  // The stream never calls it if the device is lost, so it owns nothing.
  device_.call_host(
      [&memory, read = std::move(read), &steps = steps_, count, dim = dim_, is_served] {
        const DeviceSteps::Function function(steps);
        if (function.is_too_late()) return;
        const uint32_t missing = memory.miss_count[0];
        read_missing(memory,
                     {.ids = {memory.missing.data(), missing},
                      .positions = {memory.positions.data(), is_served ? missing : 0},
                      .hits = count - missing},
                     read, steps, dim);
      },
      memory.beside);
  gpu::fetch_rows_into(device_, memory.rows.global().as_const(),
                       found.missing_positions().first(count).as_const(), found.miss_count().constant(),
                       {out, uint64_t{count} * dim_}, dim_, memory.beside);
}

void DeviceLookUp::wait_for_misses(const Memory& memory, gpu::Stream stream) {
  device_.record(memory.misses_are_fetched, memory.beside);
  device_.wait(stream, memory.misses_are_fetched);
}

void DeviceLookUp::read_missing(const Memory& memory, const Missing& missing, const ReadMissing& read,
                                DeviceSteps& steps, size_t dim) {
  float* const rows = memory.rows.data();
  try {
    steps.check_not_used_by_thread();
    read(missing, rows);
  } catch (const DamagedRowsError& error) {
    forget_rows(missing.ids, error.keys(), dim, rows);
    steps.keep_error(std::current_exception());
  } catch (...) {
    fill_with_nan(rows, missing.ids.size() * dim);
    steps.keep_error(std::current_exception());
  }
}

}  // namespace embstore
