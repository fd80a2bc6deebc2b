// Adadelta: parameters. The formula is in rules/adadelta.h.
#pragma once

#include "rules/adadelta.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adadelta : StatelessRule {
  float gain;
  float epsilon;

  explicit Adadelta(const OptimizerParams& params)
      : gain(static_cast<float>(1.0 - parameter(params, "rho"))),
        epsilon(static_cast<float>(parameter(params, "epsilon"))) {}

  float initial_slot_value(int) const { return 0.0f; }
  AdadeltaStep step(const ApplyContext& context) const {
    return {
        .learning_rate = static_cast<float>(context.state.learning_rate), .gain = gain, .epsilon = epsilon};
  }
};

}  // namespace embstore
