// FTRL-proximal (McMahan et al., 2013) with a group lasso over the row, as DeepRec's on embedding
// variables. With p = -learning_rate_power:
//   a' = a + g^2; linear += g - (a'^p - a^p) / learning_rate * w;
//   w = 0 where |linear| <= l1, else linear * (l1 / |linear| - 1) / (a'^p / learning_rate + 2 * l2),
// where |linear| is the Euclidean norm of the whole row.
#pragma once

#include <cmath>

#include "update/optimizers/optimizer.h"
#include "update/optimizers/row_norm.h"

namespace embstore {

struct Ftrl : StatelessRule {
  static constexpr int kSlots = 2;  // a, linear

  float power;
  float initial_accumulator_value;
  double l1;
  double l2;

  explicit Ftrl(const OptimizerParams& params)
      : power(static_cast<float>(-parameter(params, "learning_rate_power"))),
        initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))),
        l1(parameter(params, "l1_regularization_strength")),
        l2(parameter(params, "l2_regularization_strength")) {}

  float initial_slot_value(int slot) const { return slot == 0 ? initial_accumulator_value : 0.0f; }

  void update(float* __restrict w, float* __restrict slots, size_t stride, const float* __restrict g, int dim,
              const ApplyContext& context) const {
    const double rate = context.state.learning_rate;
    if (power == 0.5f) {
      update_with(w, slots, slots + stride, g, dim, rate, [](float a) { return std::sqrt(a); });
    } else {
      update_with(w, slots, slots + stride, g, dim, rate, [p = power](float a) { return std::pow(a, p); });
    }
  }

 private:
  template <class Raise>
  void update_with(float* __restrict w, float* __restrict a, float* __restrict linear,
                   const float* __restrict g, int dim, double learning_rate, Raise raise) const {
    const auto inverse_rate = static_cast<float>(1.0 / learning_rate);
    for (int i = 0; i < dim; ++i) {
      const float raised = a[i] + g[i] * g[i];
      linear[i] += g[i] - (raise(raised) - raise(a[i])) * inverse_rate * w[i];
      a[i] = raised;
    }
    const double norm = row_norm(linear, dim);
    if (norm <= l1) {
      for (int i = 0; i < dim; ++i) w[i] = 0.0f;
      return;
    }
    // Numerator and denominator times the learning rate, which saves a division an element.
    const auto shrink = static_cast<float>((l1 / norm - 1.0) * learning_rate);
    const auto l2_term = static_cast<float>(2.0 * l2 * learning_rate);
    for (int i = 0; i < dim; ++i) {
      const float curvature = raise(a[i]) + l2_term;
      const float minimum = shrink * linear[i] / curvature;
      w[i] = curvature > 0.0f ? minimum : w[i];  // 0 before the first gradient, if `a` starts there
    }
  }
};

}  // namespace embstore
