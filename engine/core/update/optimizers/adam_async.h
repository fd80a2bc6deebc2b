// DeepRec's AdamAsync with apply_sparse_rmsprop: parameters. The formula is in rules/adam_async.h.
#pragma once

#include "rules/adam_async.h"
#include "update/optimizers/adam.h"

namespace embstore {

struct AdamAsync : Adam {
  using Adam::Adam;

  AdamAsyncStep step(const ApplyContext& context) const {
    return {.learning_rate = static_cast<float>(context.state.learning_rate),
            .momentum = static_cast<float>(beta1),
            .v_gain = v_gain(),
            .epsilon = epsilon};
  }
};

}  // namespace embstore
