// FTRL-proximal: parameters. The formula is in rules/ftrl.h.
#pragma once

#include <cmath>

#include "rules/ftrl.h"
#include "rules/power.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

// The power function for a learning_rate_power other than -0.5.
struct LibraryPower {
  static float raised(float a, float exponent) { return std::pow(a, exponent); }
};

template <class Power>
struct Ftrl : StatelessRule {
  float exponent;
  float initial_accumulator_value;
  double l1;
  double l2;

  explicit Ftrl(const OptimizerParams& params)
      : exponent(static_cast<float>(-parameter(params, "learning_rate_power"))),
        initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))),
        l1(parameter(params, "l1_regularization_strength")),
        l2(parameter(params, "l2_regularization_strength")) {}

  float initial_slot_value(int slot) const { return slot == 0 ? initial_accumulator_value : 0.0f; }
  FtrlStep<Power> step(const ApplyContext& context) const {
    const double learning_rate = context.state.learning_rate;
    return {.learning_rate = learning_rate,
            .l1 = l1,
            .inverse_rate = static_cast<float>(1.0 / learning_rate),
            .l2_term = static_cast<float>(2.0 * l2 * learning_rate),
            .exponent = exponent};
  }
};

// The step for a GPU, whose power function is within 1 ulp of the library's. All other results have the CPU's
// bits.
inline FtrlStep<DevicePower> device_step(const FtrlStep<LibraryPower>& step) {
  return {.learning_rate = step.learning_rate,
          .l1 = step.l1,
          .inverse_rate = step.inverse_rate,
          .l2_term = step.l2_term,
          .exponent = step.exponent};
}

template <class Power>
inline void update_row(const FtrlStep<Power>& step, float* __restrict w, float* __restrict slots,
                       size_t stride, const float* __restrict g, int dim) {
  float* __restrict a = slots;
  float* __restrict linear = slots + stride;
  for (int i = 0; i < dim; ++i) step.accumulate(w[i], a[i], linear[i], g[i]);
  double lanes[kNormLanes] = {};
  int i = 0;
  for (; i + kNormLanes <= dim; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane)
      lanes[lane] = step.with_element(lanes[lane], linear[i + lane]);
  }
  for (int lane = 0; i < dim; ++i, ++lane) lanes[lane] = step.with_element(lanes[lane], linear[i]);
  const double norm = step.norm(lanes);
  if (step.is_zero(norm)) {
    for (i = 0; i < dim; ++i) w[i] = 0.0f;
    return;
  }
  const float shrink = step.shrink(norm);
  for (i = 0; i < dim; ++i) step.settle(w[i], a[i], linear[i], shrink);
}

}  // namespace embstore
