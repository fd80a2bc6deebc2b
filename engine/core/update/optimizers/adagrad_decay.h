// AdagradDecay and AdagradDecayV2: parameters. The formula is in rules/adagrad_decay.h.
#pragma once

#include "rules/adagrad_decay.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

struct AdagradDecay : StatelessRule {
  float initial_accumulator_value;
  int64_t decay_step;
  float decay_rate;

  explicit AdagradDecay(const OptimizerParams& params)
      : initial_accumulator_value(static_cast<float>(parameter(params, "initial_accumulator_value"))),
        decay_step(static_cast<int64_t>(parameter(params, "accumulator_decay_step"))),
        decay_rate(static_cast<float>(parameter(params, "accumulator_decay_rate"))) {}

  float initial_slot_value(int slot) const { return slot == 0 ? initial_accumulator_value : 0.0f; }
  AdagradDecayStep step(const ApplyContext& context) const {
    return {.adagrad = {static_cast<float>(context.state.learning_rate)},
            .initial_accumulator_value = initial_accumulator_value,
            .decay_rate = decay_rate,
            .decays_by_now = (context.global_step + 1) / decay_step};
  }
};

inline void update_row(const AdagradDecayStep& step, float* __restrict w, float* __restrict slots,
                       size_t stride, const float* __restrict g, int dim) {
  float* __restrict a = slots;
  float* __restrict decays = slots + stride;
  const bool due = step.is_due(decays[0]);
  for (int i = 0; i < dim; ++i) step.update(w[i], a[i], decays[i], g[i], due);
}

}  // namespace embstore
