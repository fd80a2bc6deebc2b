// Tests updates of rows on the emulated device against the CPU's optimizers: every rule, random batches, and
// edge cases of values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/operations/device_rows.h"
#include "gpu/operations/device_update.h"
#include "gpu/operations/gradient_sums.h"
#include "gpu/operations/unique_batch.h"
#include "gpu/testing/scene.h"
#include "row/row_guard.h"
#include "row/row_layout.h"
#include "row/unique_ids.h"
#include "testing/optimizer_cases.h"
#include "testing/tests.h"
#include "update/gradient_batch.h"
#include "update/optimizers/ftrl.h"
#include "update/optimizers/optimizer.h"

namespace embstore::gpu {
namespace {

// NaNs may differ: a GPU gives them another payload or sign.
bool equal_but_for_nans(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
  });
}

// Returns gradients; sometimes all are zero, and sometimes some are subnormal, infinite, or NaN.
std::vector<float> some_gradients(Scene& scene, size_t count) {
  using Limits = std::numeric_limits<float>;
  std::vector<float> gradients = scene.floats(count);
  switch (scene.below(6)) {
    case 0: std::fill(gradients.begin(), gradients.end(), 0.0f); break;
    case 1:
      for (float& gradient : gradients) {
        constexpr std::array<float, 7> kEdges = {
            Limits::denorm_min(), -Limits::min() / 2,  Limits::max(),      -Limits::max(),
            Limits::infinity(),   -Limits::infinity(), Limits::quiet_NaN()};
        if (scene.below(10) == 0) gradient = kEdges[scene.below(kEdges.size())];
      }
      break;
    default: break;
  }
  return gradients;
}

// Returns rows as after some training: slots as rules leave them, not negative if a root is taken of them.
std::vector<float> some_rows(Scene& scene, const RowLayout& layout, uint32_t rows, bool decays) {
  std::vector<float> floats = scene.floats(rows * layout.row_floats());
  for (size_t i = 0; i < floats.size(); ++i) {
    const size_t block = i % layout.row_floats() / layout.block_floats();
    if (block > 0) floats[i] = std::abs(floats[i]);
    // If a row was widened, its new columns have decayed less often than the others.
    if (block == 2 && decays) floats[i] = static_cast<float>(scene.below(4));
  }
  return floats;
}

struct UpdateScene {
  UpdateScene(Scene& of, const OptimizerCase& rule)
      : scene(of),
        params(rule.params),
        optimizer((params["learning_rate"] *= of.below(10) != 0, make_optimizer(rule.name, params))),
        dim(std::array<uint32_t, 10>{1, 3, 4, 7, 8, 12, 17, 33, 64, 300}[of.below(10)]),
        layout(static_cast<int>(dim), optimizer->slot_count()),
        row_count(1 + of.below(60)),
        floats(some_rows(of, layout, row_count, rule.name == "AdagradDecay")),
        state(optimizer->initial_state()),
        rows(of.device, row_count, static_cast<uint32_t>(layout.row_floats())) {
    of.device.copy_to_device(rows.floats().address(), floats.data(), floats.size() * sizeof(float),
                             of.stream);
  }

  // Applies a batch on both sides. `launch(update, step, address)` puts the update on the stream; `address`
  // is that of the step on the device.
  template <class Launch>
  void apply(int64_t global_step, const Launch& launch) {
    std::vector<int64_t> ids = scene.ids(scene.batch_size());
    if (scene.below(2) == 0) {
      for (int64_t& id : ids) id = scene.below(row_count);
    }
    // The first distinct ids have rows, except for some of them.
    const UniqueIds distinct(ids);
    std::vector<uint32_t> slots(row_count);
    std::iota(slots.begin(), slots.end(), 0u);
    std::shuffle(slots.begin(), slots.end(), scene.random);
    slots.resize(ids.size(), kNoSlot);
    for (uint32_t& slot : slots) {
      if (scene.below(10) == 0) slot = kNoSlot;
    }
    const std::vector<float> gradients = some_gradients(scene, ids.size() * dim);
    const ApplyContext context{global_step, state};
    const AnyStep step = optimizer->step(context);
    const DeviceArray<StepInMemory> step_on_device =
        scene.on_device(std::vector<StepInMemory>{StepInMemory(step)});

    GradientBatch batch;
    batch.group(ids, gradients.data(), static_cast<int>(dim));
    std::unordered_map<int64_t, uint32_t> slot_of;
    for (size_t i = 0; i < distinct.keys.size(); ++i) slot_of[distinct.keys[i]] = slots[i];
    RowGuard guard{};
    for (const KeyGradient& key : batch.keys()) {
      const uint32_t slot = slot_of.at(key.key);
      if (slot == kNoSlot) continue;
      float* const row = &floats[slot * layout.row_floats()];
      if (const auto* ftrl = std::get_if<FtrlStep<DevicePower>>(&step)) {
        // The CPU has another power function, which optimizers_test compares with the device's.
        const size_t stride = layout.block_floats();
        update_row(*ftrl, row, row + stride, stride, key.gradient, layout.dim());
        continue;
      }
      const embstore::RowUpdate update{&guard, row, key.gradient};
      optimizer->update({&update, 1}, layout, context);
    }

    const auto count = static_cast<uint32_t>(ids.size());
    const DeviceArray<int64_t> device_ids = scene.on_device(ids);
    const DeviceArray<uint32_t> device_slots = scene.on_device(slots);
    const GradientsOnDevice device_gradients(scene, gradients, dim);
    UniqueBatch unique(scene.device, count, scene.block_threads());
    GradientSums sums(scene.device, count, dim, scene.block_threads());
    make_unique(unique, device_ids.constant(), scene.stream);
    sort(sums, unique, count, scene.stream);
    Launches launches;
    sums.add_long_sums(count, device_gradients.rows(), launches);
    launches.put(scene.device, scene.stream);
    launch({device_slots.constant(), {.end = unique.count().constant()}, sums, device_gradients.rows()}, step,
           step_on_device.address());
    optimizer->advance(state);
    scene.device.synchronise(scene.stream);  // the arrays are freed
  }

  std::vector<float> on_device() { return scene.on_host(rows.floats(), floats.size()); }

  Scene& scene;
  OptimizerParams params;
  const std::unique_ptr<Optimizer> optimizer;
  const uint32_t dim;
  const RowLayout layout;
  const uint32_t row_count;
  std::vector<float> floats;  // the rows, as the CPU updates them
  OptimizerState state;
  DeviceRows rows;
};

TEST(updates_of_every_rule_give_the_bits_of_the_cpu) {
  for_each_seed([](Scene& scene) {
    const OptimizerCase& rule = optimizer_cases()[scene.below(optimizer_cases().size())];
    UpdateScene update(scene, rule);
    const int64_t first_step = scene.below(20);
    for (int64_t step = first_step; step < first_step + 3; ++step) {
      update.apply(step, [&](const DeviceUpdate& of, const AnyStep& any, DeviceAddress at) {
        Launches launches;
        if (scene.below(2) == 0) {
          of.add(any, at, update.rows, launches);
        } else {
          std::visit(
              [&](const auto& one) {
                of.add(kernel_of(one), at, update.rows, launches, scene.block_threads());
              },
              any);
        }
        launches.put(scene.device, scene.stream);
      });
    }
    check(equal_but_for_nans(update.on_device(), update.floats),
          "the bits of rows: " + rule.name + " of dim " + std::to_string(update.dim));
  });
}

// Adagrad with one operation in another order.
struct ReorderedAdagradStep {  // it has the members of AdagradStep
  static constexpr int kSlots = 1;
  float learning_rate;

  void update(float& w, float& a, float g) const {
    a += g * g;
    w -= learning_rate * (g / square_root(a));
  }
};
// Adagrad with one fused operation, as a GPU's compiler might make it.
struct FusedAdagradStep {
  static constexpr int kSlots = 1;
  float learning_rate;

  void update(float& w, float& a, float g) const {
    a = std::fma(g, g, a);
    w -= learning_rate * g / square_root(a);
  }
};
EMBSTORE_KERNEL(update_reordered, UpdateRowsArguments<ReorderedAdagradStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_fused, UpdateRowsArguments<FusedAdagradStep>) { update_rows(arguments); }

template <class Step>
uint64_t seeds_with_other_bits(const Kernel<UpdateRowsArguments<Step>>& kernel) {
  uint64_t others = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Scene scene(seed);
    UpdateScene update(scene, {"Adagrad", {{"learning_rate", 0.1}, {"initial_accumulator_value", 0.1}}});
    update.apply(0, [&](const DeviceUpdate& of, const AnyStep&, DeviceAddress at) {
      Launches launches;
      of.add(kernel, at, update.rows, launches, 64);
      launches.put(scene.device, scene.stream);
    });
    others += !equal_but_for_nans(update.on_device(), update.floats);
  }
  return others;
}

TEST(a_formula_with_one_operation_reordered_is_noticed) {
  check(seeds_with_other_bits(update_adagrad) == 0, "the right formula");
  check(seeds_with_other_bits(update_reordered) > 50, "another order of operations gave the same bits");
  check(seeds_with_other_bits(update_fused) > 50, "a contraction gave the same bits");
}

}  // namespace
}  // namespace embstore::gpu
