// Adagrad whose accumulator fades, as DeepRec's AdagradDecay and AdagradDecayV2 (which differ on dense
// variables only). When global_step + 1 has passed another multiple of accumulator_decay_step since the
// row's last decay, a = max(a * accumulator_decay_rate, initial_accumulator_value), once an update at
// most; then as Adagrad.
#pragma once

#include <algorithm>
#include <cmath>

#include "update/optimizers/optimizer.h"

namespace embstore {

struct AdagradDecay : StatelessRule {
  static constexpr int kSlots = 2;  // a; how often the row decayed, in every element

  float initial_accumulator_value;
  int64_t decay_step;
  float decay_rate;

  explicit AdagradDecay(const OptimizerParams& params)
      : initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))),
        decay_step(static_cast<int64_t>(parameter(params, "accumulator_decay_step"))),
        decay_rate(static_cast<float>(parameter(params, "accumulator_decay_rate"))) {}

  float initial_slot_value(int slot) const { return slot == 0 ? initial_accumulator_value : 0.0f; }

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto learning_rate = static_cast<float>(context.state.learning_rate);
    float* __restrict a = slots;
    float* __restrict decays = slots + stride;
    if ((context.global_step + 1) / decay_step > static_cast<int64_t>(decays[0])) {
      for (int i = 0; i < dim; ++i) {
        a[i] = std::max(a[i] * decay_rate, initial_accumulator_value);
        decays[i] += 1.0f;
      }
    }
    for (int i = 0; i < dim; ++i) {
      a[i] += g[i] * g[i];
      w[i] -= learning_rate * g[i] / std::sqrt(a[i]);
    }
  }
};

}  // namespace embstore
