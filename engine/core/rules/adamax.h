// Adamax (Kingma & Ba, 2014, section 7.1) as in Keras: m += (1 - beta1) * (g - m);
// u = max(beta2 * u, |g|); w -= learning_rate / (1 - beta1^t) * m / (u + epsilon).
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdamaxStep {
  static constexpr int kSlots = 2;  // m, u
  float step;                       // learning_rate / (1 - beta1^t)
  float m_gain;                     // 1 - beta1
  float u_decay;                    // beta2
  float epsilon;

  void update(float& w, float& m, float& u, float g) const {
    m += m_gain * (g - m);
    u = larger(u_decay * u, magnitude(g));
    w -= step * m / (u + epsilon);
  }
};

}  // namespace embstore
