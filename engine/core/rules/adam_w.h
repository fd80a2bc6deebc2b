// Adam with decoupled weight decay (Loshchilov & Hutter, 2017):
// m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
// w -= learning_rate * (m^ / (sqrt(v^) + epsilon) + weight_decay * w),
// where m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t).
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdamWStep {
  static constexpr int kSlots = 2;  // m, v
  float step;                       // learning_rate / (1 - beta1^t)
  float v_scale;                    // 1 / sqrt(1 - beta2^t)
  float decay;                      // learning_rate * weight_decay
  float m_gain;                     // 1 - beta1
  float v_gain;                     // 1 - beta2
  float epsilon;

  void update(float& w, float& m, float& v, float g) const {
    m += m_gain * (g - m);
    v += v_gain * (g * g - v);
    w -= step * m / (square_root(v) * v_scale + epsilon) + decay * w;
  }
};

}  // namespace embstore
