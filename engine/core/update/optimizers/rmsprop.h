// RMSprop with and without momentum: parameters. The formula is in rules/rmsprop.h.
#pragma once

#include "rules/rmsprop.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct Rmsprop : StatelessRule {
  float gain;
  float epsilon;

  explicit Rmsprop(const OptimizerParams& params)
      : gain(static_cast<float>(1.0 - parameter(params, "rho"))),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }
  RmspropStep step(const ApplyContext& context) const {
    return {
        .learning_rate = static_cast<float>(context.state.learning_rate), .gain = gain, .epsilon = epsilon};
  }
};

struct RmspropMomentum : Rmsprop {
  float momentum;

  explicit RmspropMomentum(const OptimizerParams& params)
      : Rmsprop(params), momentum(static_cast<float>(parameter(params, "momentum"))) {}

  RmspropMomentumStep step(const ApplyContext& context) const {
    return {.learning_rate = static_cast<float>(context.state.learning_rate),
            .gain = gain,
            .momentum = momentum,
            .epsilon = epsilon};
  }
};

}  // namespace embstore
