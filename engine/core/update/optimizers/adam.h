// Adam: parameters, and the powers of beta, which each table keeps. The formula is in rules/adam.h.
#pragma once

#include <cmath>

#include "rules/adam.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adam {
  double beta1;
  double beta2;
  float epsilon;

  explicit Adam(const OptimizerParams& params)
      : beta1(parameter(params, "beta1")),
        beta2(parameter(params, "beta2")),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }
  OptimizerState initial_state() const { return {.beta1_power = beta1, .beta2_power = beta2}; }
  void advance(OptimizerState& state) const {
    state.beta1_power *= beta1;
    state.beta2_power *= beta2;
  }
  // In double, since the bias corrections are differences of nearly equal numbers.
  AdamStep step(const ApplyContext& context) const {
    return {
        .step = static_cast<float>(context.state.learning_rate * std::sqrt(1.0 - context.state.beta2_power) /
                                   (1.0 - context.state.beta1_power)),
        .m_gain = m_gain(),
        .v_gain = v_gain(),
        .epsilon = epsilon};
  }

 protected:
  float m_gain() const { return static_cast<float>(1.0 - beta1); }
  float v_gain() const { return static_cast<float>(1.0 - beta2); }
};

}  // namespace embstore
