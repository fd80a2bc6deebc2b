// RMSprop (Tieleman & Hinton, 2012) as in Keras: a += (1 - rho) * (g^2 - a), from 0;
// d = learning_rate * g / sqrt(a + epsilon); w -= d, or with momentum: b = momentum * b + d; w -= b.
#pragma once

#include <cmath>

#include "update/optimizers/optimizer.h"

namespace embstore {

template <bool kMomentum>
struct RMSprop : StatelessRule {
  static constexpr int kSlots = kMomentum ? 2 : 1;  // a, b

  float gain;
  float momentum;
  float epsilon;

  explicit RMSprop(const OptimizerParams& params)
      : gain(static_cast<float>(1.0 - parameter(params, "rho"))),
        momentum(static_cast<float>(parameter(params, "momentum"))),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }

  void update(float* __restrict w, float* __restrict slots, [[maybe_unused]] size_t stride,
              const float* __restrict g, int dim, const ApplyContext& context) const {
    const auto learning_rate = static_cast<float>(context.state.learning_rate);
    float* __restrict a = slots;
    for (int i = 0; i < dim; ++i) a[i] += gain * (g[i] * g[i] - a[i]);
    if constexpr (kMomentum) {
      float* __restrict b = slots + stride;
      for (int i = 0; i < dim; ++i) {
        b[i] = momentum * b[i] + learning_rate * g[i] / std::sqrt(a[i] + epsilon);
        w[i] -= b[i];
      }
    } else {
      for (int i = 0; i < dim; ++i) w[i] -= learning_rate * g[i] / std::sqrt(a[i] + epsilon);
    }
  }
};

}  // namespace embstore
