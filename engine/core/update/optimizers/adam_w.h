// AdamW: parameters. The formula is in rules/adam_w.h.
#pragma once

#include <cmath>

#include "rules/adam_w.h"
#include "update/optimizers/adam.h"

namespace embstore {

struct AdamW : Adam {
  double weight_decay;

  explicit AdamW(const OptimizerParams& params)
      : Adam(params), weight_decay(parameter(params, "weight_decay")) {}

  AdamWStep step(const ApplyContext& context) const {
    return {.step = static_cast<float>(context.state.learning_rate / (1.0 - context.state.beta1_power)),
            .v_scale = static_cast<float>(1.0 / std::sqrt(1.0 - context.state.beta2_power)),
            .decay = static_cast<float>(context.state.learning_rate * weight_decay),
            .m_gain = m_gain(),
            .v_gain = v_gain(),
            .epsilon = epsilon};
  }
};

}  // namespace embstore
