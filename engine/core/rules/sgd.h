// Gradient descent: w -= learning_rate * g.
#pragma once

namespace embstore {

struct SgdStep {
  static constexpr int kSlots = 0;
  float learning_rate;

  void update(float& w, float g) const { w -= learning_rate * g; }
};

}  // namespace embstore
