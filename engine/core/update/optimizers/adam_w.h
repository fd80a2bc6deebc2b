// Adam with decoupled weight decay (Loshchilov & Hutter, 2017):
// m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
// w -= learning_rate * (m^ / (sqrt(v^) + epsilon) + weight_decay * w),
// where m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t).
#pragma once

#include <cmath>

#include "update/optimizers/adam.h"

namespace embstore {

struct AdamW : Adam {
  double weight_decay;

  explicit AdamW(const OptimizerParams& params)
      : Adam(params), weight_decay(parameter(params, "weight_decay")) {}

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto step = static_cast<float>(context.state.learning_rate / (1.0 - context.state.beta1_power));
    const auto v_scale = static_cast<float>(1.0 / std::sqrt(1.0 - context.state.beta2_power));
    const auto decay = static_cast<float>(context.state.learning_rate * weight_decay);
    const auto m_gain = static_cast<float>(1.0 - beta1);
    const auto v_gain = static_cast<float>(1.0 - beta2);
    float* __restrict m = slots;
    float* __restrict v = slots + stride;
    for (int i = 0; i < dim; ++i) {
      m[i] += m_gain * (g[i] - m[i]);
      v[i] += v_gain * (g[i] * g[i] - v[i]);
      w[i] -= step * m[i] / (std::sqrt(v[i]) * v_scale + epsilon) + decay * w[i];
    }
  }
};

}  // namespace embstore
