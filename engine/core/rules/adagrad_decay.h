// Adagrad with a decaying accumulator, as DeepRec's AdagradDecay and AdagradDecayV2 (which differ on dense
// variables only). When global_step + 1 has passed another multiple of accumulator_decay_step since the row's
// last decay, a = max(a * accumulator_decay_rate, initial_accumulator_value), at most once an update; then as
// Adagrad.
#pragma once

#include <cstdint>

#include "rules/adagrad.h"

namespace embstore {

struct AdagradDecayStep {
  static constexpr int kSlots = 2;  // a; the row's number of decays, the same in every element
  AdagradStep adagrad;
  float initial_accumulator_value;
  float decay_rate;
  int64_t decays_by_now;  // (global_step + 1) / accumulator_decay_step

  // `decays` is that of the row's first element, before any element is updated.
  bool is_due(float decays) const { return decays_by_now > static_cast<int64_t>(decays); }
  void update(float& w, float& a, float& decays, float g, bool due) const {
    if (due) {
      a = larger(a * decay_rate, initial_accumulator_value);
      decays += 1.0f;
    }
    adagrad.update(w, a, g);
  }
};

}  // namespace embstore
