// Gradient descent: parameters. The formula is in rules/sgd.h.
#pragma once

#include "rules/sgd.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct Sgd : StatelessRule {
  explicit Sgd(const OptimizerParams&) {}

  float initial_slot_value(int) const { return 0.0f; }
  SgdStep step(const ApplyContext& context) const {
    return {static_cast<float>(context.state.learning_rate)};
  }
};

}  // namespace embstore
