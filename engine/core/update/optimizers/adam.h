// Adam as tf.compat.v1.train.AdamOptimizer on sparse rows (Kingma & Ba, 2014, the form before section
// 2.1): m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
// w -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).
#pragma once

#include <cmath>

#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adam {
  static constexpr int kSlots = 2;  // m, v

  double beta1;
  double beta2;
  float epsilon;

  explicit Adam(const OptimizerParams& params)
      : beta1(parameter(params, "beta1")),
        beta2(parameter(params, "beta2")),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }
  OptimizerState initial_state() const { return {.beta1_power = beta1, .beta2_power = beta2}; }
  void advance(OptimizerState& state) const {
    state.beta1_power *= beta1;
    state.beta2_power *= beta2;
  }

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    // The bias corrections are differences of nearly equal numbers, hence the doubles.
    const auto step =
        static_cast<float>(context.state.learning_rate * std::sqrt(1.0 - context.state.beta2_power) /
                           (1.0 - context.state.beta1_power));
    const auto m_gain = static_cast<float>(1.0 - beta1);
    const auto v_gain = static_cast<float>(1.0 - beta2);
    float* __restrict m = slots;
    float* __restrict v = slots + stride;
    for (int i = 0; i < dim; ++i) {
      m[i] += m_gain * (g[i] - m[i]);
      v[i] += v_gain * (g[i] * g[i] - v[i]);
      w[i] -= step * m[i] / (std::sqrt(v[i]) + epsilon);
    }
  }
};

}  // namespace embstore
