// Adagrad: parameters. The formula is in rules/adagrad.h.
#pragma once

#include "rules/adagrad.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct Adagrad : StatelessRule {
  float initial_accumulator_value;

  explicit Adagrad(const OptimizerParams& params)
      : initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))) {}

  float initial_slot_value(int) const { return initial_accumulator_value; }
  AdagradStep step(const ApplyContext& context) const {
    return {static_cast<float>(context.state.learning_rate)};
  }
};

}  // namespace embstore
