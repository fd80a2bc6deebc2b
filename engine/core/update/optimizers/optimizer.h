// The seam between the apply loop and the update rules.
//
// A rule is a small struct: its parameters and an inline update of one row (see adagrad.h). OptimizerOf
// turns it into an Optimizer, whose virtual call is made once for a block of rows; inside, the rule is
// known to the compiler, which inlines and vectorises it, once for each of VectorExtensions.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/vector_extensions.h"
#include "row/row_guard.h"
#include "row/row_layout.h"

namespace embstore {

// Parameters by the names that Python's optimizers have; validated there.
using OptimizerParams = std::map<std::string, double>;
double parameter(const OptimizerParams& params, const char* name);  // throws Error(kInvalidArgument)

// What an optimizer keeps once a table rather than once a row: the learning rate is among it, since it may
// change between two applies.
struct OptimizerState {
  double beta1_power = 1.0;
  double beta2_power = 1.0;
  double learning_rate = 0.0;
};

// What one apply tells every row's update.
struct ApplyContext {
  int64_t global_step;
  OptimizerState state;  // before it is advanced for the next apply
};

struct RowUpdate {
  RowGuard* guard;        // of the row
  float* row;             // weights, then the slots
  const float* gradient;  // RowLayout::dim() floats
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual int slot_count() const = 0;
  virtual float initial_slot_value(int slot) const = 0;
  // Of all slots.
  std::vector<float> initial_slot_values() const {
    std::vector<float> values;
    for (int slot = 0; slot < slot_count(); ++slot) values.push_back(initial_slot_value(slot));
    return values;
  }
  virtual OptimizerState initial_state() const = 0;
  // Called once an apply, after the apply took its copy.
  virtual void advance(OptimizerState& state) const = 0;
  // REQUIRES: the mutex of the shard that the rows belong to is held.
  virtual void update(std::span<const RowUpdate> rows, const RowLayout& layout,
                      const ApplyContext& context) const = 0;
};

// `name` as in embstore.optimizers; throws Error(kInvalidArgument) for one that doesn't exist. Gives the same
// bits with all `extensions`, which the processor must offer.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerParams& params,
                                          VectorExtensions extensions = chosen_vector_extensions());

template <class Rule>
concept UpdateRule = requires(const Rule rule, const OptimizerParams& params, float* row,
                              const float* gradient, OptimizerState& state, const ApplyContext& context) {
  Rule(params);
  { Rule::kSlots } -> std::convertible_to<int>;
  { rule.initial_slot_value(0) } -> std::same_as<float>;
  // All but the learning rate, which every rule reads from context.state.
  { rule.initial_state() } -> std::same_as<OptimizerState>;
  rule.advance(state);
  // `slots` is the first slot; slot k lies k * slot_stride floats behind it.
  rule.update(row, /*slots=*/row, /*slot_stride=*/size_t{}, gradient, /*dim=*/0, context);
};

// The parts that rules share whose only global state is the learning rate.
struct StatelessRule {
  OptimizerState initial_state() const { return {}; }
  void advance(OptimizerState&) const {}
};

// One loop over rows for each of VectorExtensions: the same source, since a rule that is inlined is compiled
// for what the function around it may use. `flatten` inlines all of it; a call that stayed one would be of
// the function for every x86-64. Chosen by a pointer and not by the loader (target_clones), which would
// choose before a sanitizer has started.
template <UpdateRule Rule>
using RowLoop = void (*)(const Rule&, std::span<const RowUpdate>, const RowLayout&, const ApplyContext&);

template <UpdateRule Rule>
inline void update_rows(const Rule& of, std::span<const RowUpdate> rows, const RowLayout& layout,
                        const ApplyContext& context) {
  // Local copies, which stores to rows can't alias: what doesn't depend on the row leaves the loop.
  const Rule rule = of;
  const ApplyContext apply = context;
  const size_t stride = layout.block_floats();
  const int dim = layout.dim();
  for (const RowUpdate& update : rows) {
    const RowWrite write(*update.guard);
    rule.update(update.row, update.row + stride, stride, update.gradient, dim, apply);
  }
}

template <UpdateRule Rule>
[[gnu::flatten]] void update_rows_default(const Rule& rule, std::span<const RowUpdate> rows,
                                          const RowLayout& layout, const ApplyContext& context) {
  update_rows(rule, rows, layout, context);
}

template <UpdateRule Rule>
[[gnu::target("avx2"), gnu::flatten]] void update_rows_avx2(const Rule& rule, std::span<const RowUpdate> rows,
                                                            const RowLayout& layout,
                                                            const ApplyContext& context) {
  update_rows(rule, rows, layout, context);
}

template <UpdateRule Rule>
RowLoop<Rule> row_loop(VectorExtensions extensions) {
  if (extensions == VectorExtensions::kAvx2) return update_rows_avx2<Rule>;
  return update_rows_default<Rule>;
}

template <UpdateRule Rule>
class OptimizerOf final : public Optimizer {
 public:
  OptimizerOf(const OptimizerParams& params, VectorExtensions extensions)
      : rule_(params),
        learning_rate_(parameter(params, "learning_rate")),
        update_rows_(row_loop<Rule>(extensions)) {}

  int slot_count() const override { return Rule::kSlots; }
  float initial_slot_value(int slot) const override { return rule_.initial_slot_value(slot); }
  OptimizerState initial_state() const override {
    OptimizerState state = rule_.initial_state();
    state.learning_rate = learning_rate_;
    return state;
  }
  void advance(OptimizerState& state) const override { rule_.advance(state); }

  void update(std::span<const RowUpdate> rows, const RowLayout& layout,
              const ApplyContext& context) const override {
    update_rows_(rule_, rows, layout, context);
  }

 private:
  const Rule rule_;
  const double learning_rate_;  // at the start
  const RowLoop<Rule> update_rows_;
};

}  // namespace embstore
