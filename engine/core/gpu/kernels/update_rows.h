// Updates rows in the device's memory, one kernel a rule. The formulas are those of rules/, which the CPU's
// optimizers use too, so bits are equal.
//
// Some neighbouring threads share a row, and take its units of four floats in turn. Rules that look at one
// element alone take one pass; the other rules have barriers of the block between their passes.
#pragma once

#include "gpu/kernels/gradient_sums.h"
#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"
#include "rules/adadelta.h"
#include "rules/adagrad.h"
#include "rules/adagrad_decay.h"
#include "rules/adam.h"
#include "rules/adam_async.h"
#include "rules/adam_w.h"
#include "rules/adamax.h"
#include "rules/ftrl.h"
#include "rules/power.h"
#include "rules/rmsprop.h"
#include "rules/sgd.h"

namespace embstore::gpu {

template <class Step>
struct UpdateRowsArguments {
  Global<const Step> step;  // one element
  Global<Float4> rows;      // by slot: the weights, then the rule's slots, each a whole number of units long
  uint32_t row_threads;     // threads that share a row; divides the threads of a block
  uint32_t blocks;          // the run's number of blocks
  Global<const uint32_t> slots;  // each distinct id's slot, none twice; kNoSlot is left out
  Places places;                 // in `slots`
  BatchGradients gradients;
};

// This thread's part of a row, one of the rows that its block updates at once.
template <class Step>
struct RowPart {
  // The block's rows are those from `first` to before `end`.
  RowPart(const UpdateRowsArguments<Step>& step_arguments, uint64_t first, uint64_t end)
      : arguments(step_arguments),
        row_in_block(thread_index() / step_arguments.row_threads),
        first_unit(thread_index() % step_arguments.row_threads),
        block_units(units_of(step_arguments.gradients.dim)) {
    const uint64_t i = first + row_in_block;
    if (i >= end) return;
    const uint32_t slot = step_arguments.slots[i];
    if (slot == kNoSlot) return;
    exists = true;
    distinct = i;
    weights = uint64_t{slot} * (1 + Step::kSlots) * block_units;
  }

  template <class F>
  void for_each_unit(const F& f) const {
    for (uint32_t unit = first_unit; 4 * unit < arguments.gradients.dim; unit += arguments.row_threads)
      f(unit);
  }
  uint32_t lanes(uint32_t unit) const { return lanes_of(arguments.gradients.dim, unit); }
  Float4 gradient(uint32_t unit) const { return summed_gradient(arguments.gradients, distinct, unit); }
  // The index of a unit: block 0 is the weights, block 1 the first slot.
  uint64_t at(uint32_t block, uint32_t unit) const { return weights + block * block_units + unit; }
  Float4 load(uint32_t block, uint32_t unit) const { return arguments.rows[at(block, unit)]; }
  void store(uint32_t block, uint32_t unit, const Float4& value) const {
    arguments.rows[at(block, unit)] = value;
  }

  const UpdateRowsArguments<Step>& arguments;
  const uint32_t row_in_block;
  const uint32_t first_unit;
  const uint32_t block_units;
  bool exists = false;
  uint64_t distinct = 0;
  uint64_t weights = 0;
};

template <class Step>
inline void update_block(const UpdateRowsArguments<Step>&, const Step& step, const RowPart<Step>& part) {
  if (!part.exists) return;
  part.for_each_unit([&](uint32_t unit) {
    Float4 g = part.gradient(unit);
    Float4 w = part.load(0, unit);
    if constexpr (Step::kSlots == 0) {
      for_each_lane(part.lanes(unit), [&](auto lane) { step.update(lane(w), lane(g)); });
    } else if constexpr (Step::kSlots == 1) {
      Float4 a = part.load(1, unit);
      for_each_lane(part.lanes(unit), [&](auto lane) { step.update(lane(w), lane(a), lane(g)); });
      part.store(1, unit, a);
    } else {
      Float4 a = part.load(1, unit);
      Float4 b = part.load(2, unit);
      for_each_lane(part.lanes(unit), [&](auto lane) { step.update(lane(w), lane(a), lane(b), lane(g)); });
      part.store(1, unit, a);
      part.store(2, unit, b);
    }
    part.store(0, unit, w);
  });
}

inline void update_block(const UpdateRowsArguments<AdagradDecayStep>&, const AdagradDecayStep& step,
                         const RowPart<AdagradDecayStep>& part) {
  const bool due = part.exists && step.is_due(part.load(2, 0).x);
  sync_block();  // before a thread changes element 0 of the decays, which all threads of the row have read
  if (!part.exists) return;
  part.for_each_unit([&](uint32_t unit) {
    Float4 g = part.gradient(unit);
    Float4 w = part.load(0, unit), a = part.load(1, unit), decays = part.load(2, unit);
    for_each_lane(part.lanes(unit),
                  [&](auto lane) { step.update(lane(w), lane(a), lane(decays), lane(g), due); });
    part.store(0, unit, w);
    part.store(1, unit, a);
    part.store(2, unit, decays);
  });
}

template <class Power>
inline void update_block(const UpdateRowsArguments<FtrlStep<Power>>& arguments, const FtrlStep<Power>& step,
                         const RowPart<FtrlStep<Power>>& part) {
  using Step = FtrlStep<Power>;
  EMBSTORE_SHARED(double, norm_lanes, kMaxBlockThreads* kNormLanes);  // for each row of the block
  if (part.exists) {
    part.for_each_unit([&](uint32_t unit) {
      Float4 g = part.gradient(unit);
      Float4 w = part.load(0, unit), a = part.load(1, unit), linear = part.load(2, unit);
      for_each_lane(part.lanes(unit),
                    [&](auto lane) { step.accumulate(lane(w), lane(a), lane(linear), lane(g)); });
      part.store(1, unit, a);
      part.store(2, unit, linear);
    });
  }
  sync_block();
  if (part.exists) {
    const Global<const float> floats{arguments.rows.address, arguments.rows.count * 4};
    for (uint32_t lane = part.first_unit; lane < kNormLanes; lane += arguments.row_threads) {
      double sum = 0.0;
      for (uint32_t i = lane; i < arguments.gradients.dim; i += kNormLanes) {
        sum = Step::with_element(sum, floats[4 * part.at(2, 0) + i]);
      }
      norm_lanes[part.row_in_block * kNormLanes + lane] = sum;
    }
  }
  sync_block();
  if (!part.exists) return;
  double lanes[kNormLanes];
  for (uint32_t lane = 0; lane < kNormLanes; ++lane)
    lanes[lane] = norm_lanes[part.row_in_block * kNormLanes + lane];
  const double norm = Step::norm(lanes);
  const bool is_zero = step.is_zero(norm);
  const float shrink = is_zero ? 0.0f : step.shrink(norm);
  part.for_each_unit([&](uint32_t unit) {
    Float4 w = part.load(0, unit), a = part.load(1, unit), linear = part.load(2, unit);
    for_each_lane(part.lanes(unit), [&](auto lane) {
      if (is_zero) {
        lane(w) = 0.0f;
      } else {
        step.settle(lane(w), lane(a), lane(linear), shrink);
      }
    });
    part.store(0, unit, w);
  });
}

// All threads of a block reach the barriers equally often, since they have the same bounds.
template <class Step>
inline void update_rows(const UpdateRowsArguments<Step>& arguments) {
  const uint64_t end = end_of(arguments.places, arguments.slots.count);
  const uint64_t block_rows = block_threads() / arguments.row_threads;
  const Step step = arguments.step[0];
  for (uint64_t first = first_of(arguments.places) + block_index() * block_rows; first < end;
       first += arguments.blocks * block_rows) {
    update_block(arguments, step, RowPart<Step>(arguments, first, end));
  }
}

EMBSTORE_KERNEL(update_adadelta, UpdateRowsArguments<AdadeltaStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adagrad, UpdateRowsArguments<AdagradStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adagrad_decay, UpdateRowsArguments<AdagradDecayStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adam, UpdateRowsArguments<AdamStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adam_async, UpdateRowsArguments<AdamAsyncStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adam_w, UpdateRowsArguments<AdamWStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_adamax, UpdateRowsArguments<AdamaxStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_ftrl, UpdateRowsArguments<FtrlStep<SquareRoot>>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_ftrl_by_power, UpdateRowsArguments<FtrlStep<DevicePower>>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_rmsprop, UpdateRowsArguments<RmspropStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_rmsprop_momentum, UpdateRowsArguments<RmspropMomentumStep>) { update_rows(arguments); }
EMBSTORE_KERNEL(update_sgd, UpdateRowsArguments<SgdStep>) { update_rows(arguments); }

}  // namespace embstore::gpu
