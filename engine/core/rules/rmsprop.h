// RMSprop (Tieleman & Hinton, 2012) as in Keras: a += (1 - rho) * (g^2 - a), from 0;
// d = learning_rate * g / sqrt(a + epsilon); w -= d, or with momentum: b = momentum * b + d; w -= b.
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct RmspropStep {
  static constexpr int kSlots = 1;  // a
  float learning_rate;
  float gain;  // 1 - rho
  float epsilon;

  void update(float& w, float& a, float g) const {
    a += gain * (g * g - a);
    w -= learning_rate * g / square_root(a + epsilon);
  }
};

struct RmspropMomentumStep {
  static constexpr int kSlots = 2;  // a, b
  float learning_rate;
  float gain;  // 1 - rho
  float momentum;
  float epsilon;

  void update(float& w, float& a, float& b, float g) const {
    a += gain * (g * g - a);
    b = momentum * b + learning_rate * g / square_root(a + epsilon);
    w -= b;
  }
};

}  // namespace embstore
