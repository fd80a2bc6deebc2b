// Adagrad as tf.compat.v1.train.AdagradOptimizer (Duchi et al., 2011), without an epsilon:
// a += g^2; w -= learning_rate * g / sqrt(a).
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdagradStep {
  static constexpr int kSlots = 1;
  float learning_rate;

  void update(float& w, float& a, float g) const {
    a += g * g;
    w -= learning_rate * g / square_root(a);
  }
};

}  // namespace embstore
