// The update of rows by Adagrad, with the operations of update/optimizers/adagrad.h in the same order: bits are equal.
#pragma once

#include "gpu/kernels/mirror.h"

namespace embstore::gpu {

struct AdagradArguments {
  Global<float> rows;  // by slot: weights, then the accumulators, each block_floats long
  uint32_t block_floats;
  Global<const uint32_t> slots;       // of each distinct id; what has kNoSlot is left out
  Global<const uint32_t> slot_count;  // one: how many of `slots` there are
  Global<const float> gradients;      // of dim floats each, by distinct id
  uint32_t dim;
  float learning_rate;
};

// The host launches one thread a float of the gradients.
EMBSTORE_KERNEL(adagrad, AdagradArguments) {
  const uint64_t number = uint64_t{block_index()} * block_threads() + thread_index();
  const uint64_t i = number / arguments.dim;
  if (i >= arguments.slot_count[0] || arguments.slots[i] == kNoSlot) return;
  const uint64_t weights = uint64_t{arguments.slots[i]} * 2 * arguments.block_floats + number % arguments.dim;
  const float g = arguments.gradients[number];
  const uint64_t accumulators = weights + arguments.block_floats;
  const float a = arguments.rows[accumulators] + g * g;
  arguments.rows[accumulators] = a;
  arguments.rows[weights] = arguments.rows[weights] - arguments.learning_rate * g / square_root(a);
}

}  // namespace embstore::gpu
