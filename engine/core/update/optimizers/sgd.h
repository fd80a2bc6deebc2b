// Gradient descent: w -= learning_rate * g.
#pragma once

#include "update/optimizers/optimizer.h"

namespace embstore {

struct Sgd : StatelessRule {
  static constexpr int kSlots = 0;

  explicit Sgd(const OptimizerParams&) {}

  float initial_slot_value(int) const { return 0.0f; }

  void update(float* __restrict w, float* __restrict, size_t, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto learning_rate = static_cast<float>(context.state.learning_rate);
    for (int i = 0; i < dim; ++i) w[i] -= learning_rate * g[i];
  }
};

}  // namespace embstore
