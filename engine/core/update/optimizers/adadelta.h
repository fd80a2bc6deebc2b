// Adadelta (Zeiler, 2012) as in Keras: a += (1 - rho) * (g^2 - a);
// d = g * sqrt(b + epsilon) / sqrt(a + epsilon); b += (1 - rho) * (d^2 - b); w -= learning_rate * d.
#pragma once

#include <cmath>

#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adadelta : StatelessRule {
  static constexpr int kSlots = 2;  // a, b

  float gain;
  float epsilon;

  explicit Adadelta(const OptimizerParams& params)
      : gain(static_cast<float>(1.0 - parameter(params, "rho"))),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto learning_rate = static_cast<float>(context.state.learning_rate);
    float* __restrict a = slots;
    float* __restrict b = slots + stride;
    for (int i = 0; i < dim; ++i) {
      a[i] += gain * (g[i] * g[i] - a[i]);
      const float delta = g[i] * std::sqrt(b[i] + epsilon) / std::sqrt(a[i] + epsilon);
      b[i] += gain * (delta * delta - b[i]);
      w[i] -= learning_rate * delta;
    }
  }
};

}  // namespace embstore
