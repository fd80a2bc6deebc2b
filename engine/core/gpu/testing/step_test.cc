// Steps of training as a tier will put them on a stream: ids made distinct and found, rows that are missing brought up by the
// host while the stream waits, rows read, gradients summed and applied. The host waits for none of it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/emulated/emulated_device.h"
#include "gpu/operations/device_rows.h"
#include "gpu/operations/device_update.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/mirror.h"
#include "gpu/operations/unique_batch.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "testing/tests.h"
#include "update/gradient_batch.h"
#include "update/optimizers/optimizer.h"

namespace embstore::gpu {
namespace {

constexpr uint32_t kIds = 60, kDim = 4, kSlots = 200, kSteps = 3;
constexpr float kInitialAccumulator = 0.1f;

// What a row holds before its first update.
std::vector<float> initial_row(int64_t key) {
  std::vector<float> row(2 * kDim, kInitialAccumulator);
  std::fill_n(row.begin(), kDim, 0.5f + static_cast<float>(key) / 64);
  return row;
}

// The rows below, and what the host notes when rows leave them. Its functions are called by the stream.
struct Below {
  Below(Device& device)
      : miss_count(device, 1), missing(device, kIds), slots(device, kIds), rows(device, kIds * 2 * kDim) {}

  // Where the rows of missing keys go, and the rows.
  void serve() {
    for (uint32_t i = 0; i < miss_count[0]; ++i) {
      slots[i] = next_slot++;
      const std::vector<float> row = initial_row(missing[i]);
      std::copy(row.begin(), row.end(), rows.data() + i * 2 * kDim);
    }
    served += miss_count[0];
  }

  PinnedArray<uint32_t> miss_count;
  PinnedArray<int64_t> missing;
  PinnedArray<uint32_t> slots;
  PinnedArray<float> rows;
  uint32_t next_slot = 0;
  uint64_t served = 0;
};

// A table of the host: what rows should hold.
struct PlainTable {
  std::vector<float> step(const std::vector<int64_t>& ids, const std::vector<float>& gradients) {
    std::vector<float> weights;
    for (const int64_t id : ids) {
      std::vector<float>& row = rows.try_emplace(id, initial_row(id)).first->second;
      weights.insert(weights.end(), row.begin(), row.begin() + kDim);
    }
    GradientBatch batch;
    batch.group(ids, gradients.data(), kDim);
    RowGuard guard{};
    for (const KeyGradient& key : batch.keys()) {
      const RowUpdate update{&guard, rows.at(key.key).data(), key.gradient};
      optimizer->update({&update, 1}, layout, {0, optimizer->initial_state()});
    }
    return weights;
  }

  const RowLayout layout{kDim, 1};
  const std::unique_ptr<Optimizer> optimizer =
      make_optimizer("Adagrad", {{"learning_rate", 0.1}, {"initial_accumulator_value", kInitialAccumulator}});
  std::unordered_map<int64_t, std::vector<float>> rows;
};

// What a step takes, and what it gives: pinned, and its own until the stream is through.
struct Step {
  explicit Step(Device& device)
      : ids(device, kIds), gradients(device, kIds * kDim), weights(device, kIds * kDim) {}

  PinnedArray<int64_t> ids;
  PinnedArray<float> gradients;
  PinnedArray<float> weights;
};

struct GpuTable {
  explicit GpuTable(EmulatedDevice& of)
      : device(of),
        mirror(of, kSlots, stream),
        rows(of, kSlots, 2 * kDim),
        unique(of, kIds, 32),
        found(of, kIds, 32),
        all_found(of, kIds, 32),
        sums(of, kIds, kDim, 32),
        ids(of, kIds),
        gradients(of, kIds * kDim),
        weights(of, kIds * kDim),
        id_count(of, 1),
        below(of) {
    const uint32_t count = kIds;
    id_count.copy_from(&count, 1, stream);
  }

  void put(Step& step) {
    ids.copy_from(step.ids.data(), kIds, stream);
    unique.make_unique(ids.constant(), stream);
    found.find(mirror, unique.keys().constant(), unique.count().constant(), stream);
    // The host isn't told how many are missing before the stream gets there, so all there could be are copied.
    found.miss_count().copy_to(below.miss_count.data(), 1, stream);
    found.missing_ids().copy_to(below.missing.data(), kIds, stream);
    device.call_host([this] { below.serve(); }, stream);
    const Global<const uint32_t> slots = below.slots.global().as_const();
    mirror.insert(found.missing_ids().constant(), slots, found.miss_count().constant(), stream);
    rows.scatter({below.rows.global().address, kIds, slots, found.miss_count().constant()}, 2 * kDim, stream);
    all_found.find(mirror, unique.keys().constant(), unique.count().constant(), stream);
    rows.gather({weights.address(), kIds, all_found.slots().constant(), id_count.constant(),
                 unique.inverse().constant()},
                kDim, stream);
    weights.copy_to(step.weights.data(), kIds * kDim, stream);
    gradients.copy_from(step.gradients.data(), kIds * kDim, stream);
    sums.sum(unique, kIds, gradients.address(), stream);
    DeviceUpdate::by_sums(all_found.slots().constant(), unique.count().constant(), sums.sums().address(),
                          kDim)
        .launch(device, AdagradStep{0.1f}, rows, stream);
  }

  EmulatedDevice& device;
  OwnedStream stream{device};
  Mirror mirror;
  DeviceRows rows;
  UniqueBatch unique;
  FoundBatch found, all_found;
  GradientSums sums;
  DeviceArray<int64_t> ids;
  DeviceArray<float> gradients, weights;
  DeviceArray<uint32_t> id_count;
  Below below;
};

TEST(steps_give_the_bits_of_a_table_of_the_host_and_never_wait) {
  for (uint64_t seed = 0; seed < scenes(300); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    EmulatedDevice device({.memory_bytes = 4 << 20, .seed = seed});
    GpuTable table(device);
    OwnedEvent end(device);
    std::vector<std::unique_ptr<Step>> steps;
    std::vector<std::vector<float>> expected;
    PlainTable plain;
    std::mt19937_64 random(seed);
    std::normal_distribution<float> value;
    for (uint32_t i = 0; i < kSteps; ++i) {
      Step& step = *steps.emplace_back(std::make_unique<Step>(device));
      std::vector<int64_t> ids(kIds);
      std::vector<float> gradients(kIds * kDim);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % 80);
      for (float& gradient : gradients) gradient = value(random);
      std::copy(ids.begin(), ids.end(), step.ids.data());
      std::copy(gradients.begin(), gradients.end(), step.gradients.data());
      expected.push_back(plain.step(ids, gradients));
    }
    const uint64_t waits = device.host_waits();
    for (const auto& step : steps) table.put(*step);
    device.record(end, table.stream);
    while (!device.query(end)) {
    }
    check(device.host_waits() == waits, "the host waited for a step");
    check(table.below.served == plain.rows.size(), "each row came up once");
    for (uint32_t i = 0; i < kSteps; ++i) {
      check(
          std::memcmp(steps[i]->weights.data(), expected[i].data(), expected[i].size() * sizeof(float)) == 0,
          "what step " + std::to_string(i) + " read; " + device.last_schedule());
    }
  }
}

}  // namespace
}  // namespace embstore::gpu
