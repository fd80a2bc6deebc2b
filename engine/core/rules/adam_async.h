// DeepRec's AdamAsync with apply_sparse_rmsprop, an RMSProp with momentum (without that option it is Adam):
// v += (1 - beta2) * (g^2 - v); m = beta1 * m + learning_rate * g / sqrt(v + epsilon); w -= m.
#pragma once

#include "rules/arithmetic.h"

namespace embstore {

struct AdamAsyncStep {
  static constexpr int kSlots = 2;  // m, v
  float learning_rate;
  float momentum;  // beta1
  float v_gain;    // 1 - beta2
  float epsilon;

  void update(float& w, float& m, float& v, float g) const {
    v += v_gain * (g * g - v);
    m = momentum * m + learning_rate * g / square_root(v + epsilon);
    w -= m;
  }
};

}  // namespace embstore
