// Adadelta (Zeiler, 2012) as in Keras: a += (1 - rho) * (g^2 - a);
// d = g * sqrt(b + epsilon) / sqrt(a + epsilon); b += (1 - rho) * (d^2 - b); w -= learning_rate * d.
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdadeltaStep {
  static constexpr int kSlots = 2;  // a, b
  float learning_rate;
  float gain;  // 1 - rho
  float epsilon;

  void update(float& w, float& a, float& b, float g) const {
    a += gain * (g * g - a);
    const float delta = g * square_root(b + epsilon) / square_root(a + epsilon);
    b += gain * (delta * delta - b);
    w -= learning_rate * delta;
  }
};

}  // namespace embstore
