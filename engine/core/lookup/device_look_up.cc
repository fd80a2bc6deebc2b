#include "lookup/device_look_up.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <unordered_set>
#include <utility>

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
        rows(device, uint64_t{most} * dim) {}

  const uint32_t most_ids;
  gpu::FoundBatch found;
  gpu::CountOnDevice id_count;
  gpu::PinnedArray<uint32_t> miss_count;
  gpu::PinnedArray<int64_t> missing;
  gpu::PinnedArray<float> rows;  // of the missing ids
};

namespace {

// Smaller batches take the memory of such a one.
constexpr uint32_t kLeastIds = 256;

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

bool DeviceLookUp::try_put(const IdsOnDevice& ids, gpu::DeviceAddress out, ReadMissing read) {
  DeviceSteps::Turn turn(steps_);
  if (turn.is_refused()) return false;
  tier_.join(ids.stream);
  const std::shared_ptr<Memory> memory = take_memory(ids.count);
  try {
    put(*memory, ids, out, std::move(read));
  } catch (...) {
    // A part of it may be on the stream.
    gpu::ignoring_a_lost_device([&] { device_.record(memory->end(), ids.stream); });
    turn.is_in_flight(memory);
    throw;
  }
  turn.is_in_flight(memory);
  return true;
}

std::shared_ptr<DeviceLookUp::Memory> DeviceLookUp::take_memory(uint32_t ids) {
  std::shared_ptr<Memory>* best = nullptr;
  for (std::shared_ptr<Memory>& memory : memories_) {
    // What is in flight is the steps' too.
    if (memory.use_count() != 1 || memory->most_ids < ids) continue;
    if (best == nullptr || memory->most_ids < (*best)->most_ids) best = &memory;
  }
  if (best != nullptr) return *best;
  // What is too small goes, unless it's in flight: batches have grown.
  std::erase_if(memories_,
                [ids](const auto& memory) { return memory.use_count() == 1 && memory->most_ids < ids; });
  return memories_.emplace_back(
      std::make_shared<Memory>(device_, std::bit_ceil(std::max(ids, kLeastIds)), dim_));
}

void DeviceLookUp::put(Memory& memory, const IdsOnDevice& ids, gpu::DeviceAddress out, ReadMissing read) {
  const gpu::Stream stream = ids.stream;
  const gpu::FoundBatch& found = memory.found;
  const gpu::Global<const uint32_t> id_count = memory.id_count.set(ids.count, stream);
  memory.found.find(tier_.mirror(), {ids.ids, ids.count}, id_count, memory.missing.global(), stream);
  found.miss_count().copy_to(memory.miss_count.data(), 1, stream);
  tier_.rows().gather({out, ids.count, found.slots().constant(), id_count}, dim_, stream);
  // The stream never calls it if the device is lost, so it owns nothing.
  device_.call_host(
      [&memory, read = std::move(read), &steps = steps_, count = ids.count, dim = dim_] {
        const DeviceSteps::Function function(steps);
        if (!function.is_too_late()) read_missing(memory, read, steps, count, dim);
      },
      stream);
  gpu::fetch_rows_into(device_, memory.rows.global().as_const(),
                       found.missing_positions().first(ids.count).as_const(), found.miss_count().constant(),
                       {out, uint64_t{ids.count} * dim_}, dim_, stream);
  device_.record(memory.end(), stream);
}

void DeviceLookUp::read_missing(const Memory& memory, const ReadMissing& read, DeviceSteps& steps,
                                uint32_t ids, size_t dim) {
  const std::span<const int64_t> missing(memory.missing.data(), memory.miss_count[0]);
  float* const rows = memory.rows.data();
  try {
    read(missing, ids - missing.size(), rows);
  } catch (const DamagedRowsError& error) {
    forget_rows(missing, error.keys(), dim, rows);
    steps.keep_error(std::current_exception());
  } catch (...) {
    fill_with_nan(rows, missing.size() * dim);
    steps.keep_error(std::current_exception());
  }
}

}  // namespace embstore
