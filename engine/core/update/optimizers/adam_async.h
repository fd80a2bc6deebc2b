// Adam as DeepRec's AdamAsync: Adam, or with apply_sparse_rmsprop, an RMSProp with momentum:
// v += (1 - beta2) * (g^2 - v); m = beta1 * m + learning_rate * g / sqrt(v + epsilon); w -= m.
#pragma once

#include <cmath>

#include "update/optimizers/adam.h"

namespace embstore {

struct AdamAsync : Adam {
  bool apply_sparse_rmsprop;

  explicit AdamAsync(const OptimizerParams& params)
      : Adam(params), apply_sparse_rmsprop(parameter(params, "apply_sparse_rmsprop") != 0.0) {}

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    if (!apply_sparse_rmsprop) {
      Adam::update(w, slots, stride, g, dim, context);
      return;
    }
    const auto step = static_cast<float>(context.state.learning_rate);
    const auto momentum = static_cast<float>(beta1);
    const auto v_gain = static_cast<float>(1.0 - beta2);
    float* __restrict m = slots;
    float* __restrict v = slots + stride;
    for (int i = 0; i < dim; ++i) {
      v[i] += v_gain * (g[i] * g[i] - v[i]);
      m[i] = momentum * m[i] + step * g[i] / std::sqrt(v[i] + epsilon);
      w[i] -= m[i];
    }
  }
};

}  // namespace embstore
