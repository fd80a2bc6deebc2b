// Adamax (Kingma & Ba, 2014, section 7.1) as in Keras: m += (1 - beta1) * (g - m);
// u = max(beta2 * u, |g|); w -= learning_rate / (1 - beta1^t) * m / (u + epsilon).
#pragma once

#include <algorithm>
#include <cmath>

#include "update/optimizers/adam.h"

namespace embstore {

struct Adamax : Adam {
  using Adam::Adam;  // slots m, u

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const auto step = static_cast<float>(context.state.learning_rate / (1.0 - context.state.beta1_power));
    const auto m_gain = static_cast<float>(1.0 - beta1);
    const auto u_decay = static_cast<float>(beta2);
    float* __restrict m = slots;
    float* __restrict u = slots + stride;
    for (int i = 0; i < dim; ++i) {
      m[i] += m_gain * (g[i] - m[i]);
      u[i] = std::max(u_decay * u[i], std::fabs(g[i]));
      w[i] -= step * m[i] / (u[i] + epsilon);
    }
  }
};

}  // namespace embstore
