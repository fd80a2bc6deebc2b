// Adamax: parameters. The formula is in rules/adamax.h.
#pragma once

#include "rules/adamax.h"
#include "update/optimizers/adam.h"

namespace embstore {

struct Adamax : Adam {
  using Adam::Adam;

  AdamaxStep step(const ApplyContext& context) const {
    return {.step = static_cast<float>(context.state.learning_rate / (1.0 - context.state.beta1_power)),
            .m_gain = m_gain(),
            .u_decay = static_cast<float>(beta2),
            .epsilon = epsilon};
  }
};

}  // namespace embstore
