// Adam as tf.compat.v1.train.AdamOptimizer on sparse rows (Kingma & Ba, 2014, the form before section
// 2.1): m += (1 - beta1) * (g - m); v += (1 - beta2) * (g^2 - v);
// w -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdamStep {
  static constexpr int kSlots = 2;  // m, v
  float step;                       // learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)
  float m_gain;                     // 1 - beta1
  float v_gain;                     // 1 - beta2
  float epsilon;

  void update(float& w, float& m, float& v, float g) const {
    m += m_gain * (g - m);
    v += v_gain * (g * g - v);
    w -= step * m / (square_root(v) + epsilon);
  }
};

}  // namespace embstore
