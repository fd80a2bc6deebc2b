// Adagrad as tf.compat.v1.train.AdagradOptimizer (Duchi et al., 2011), without an epsilon:
// a += g^2; w -= learning_rate * g / sqrt(a).
#pragma once

#include <cmath>

#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adagrad : StatelessRule {
  static constexpr int kSlots = 1;  // a

  float initial_accumulator_value;

  explicit Adagrad(const OptimizerParams& params)
      : initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))) {}

  float initial_slot_value(int) const { return initial_accumulator_value; }

  void update(float* __restrict w, float* __restrict slots, size_t, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto learning_rate = static_cast<float>(context.state.learning_rate);
    float* __restrict a = slots;
    for (int i = 0; i < dim; ++i) {
      a[i] += g[i] * g[i];
      w[i] -= learning_rate * g[i] / std::sqrt(a[i]);
    }
  }
};

}  // namespace embstore
