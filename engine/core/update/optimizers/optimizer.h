// The seam between the apply loop and the update rules.
//
// A rule is a small struct: its parameters, and the step that it makes of them for one apply. The step has the formula,
// element by element, in rules/ (see rules/adagrad.h), which the kernels of a GPU compile too. OptimizerOf turns a rule into
// an Optimizer, whose virtual call is made once for a block of rows; inside, the step is known to the compiler, which inlines
// and vectorises it, once for each of VectorExtensions.
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
#include "rules/any_step.h"

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
  // The formula of one apply, for a device that updates rows by itself. It gives the bits of update(), but where the rule has
  // a device_step().
  virtual AnyStep step(const ApplyContext& context) const = 0;
};

// `name` as in embstore.optimizers; throws Error(kInvalidArgument) for one that doesn't exist. Gives the same
// bits with all `extensions`, which the processor must offer.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerParams& params,
                                          VectorExtensions extensions = chosen_vector_extensions());

template <class Rule>
concept UpdateRule = requires(const Rule rule, const OptimizerParams& params, OptimizerState& state,
                              const ApplyContext& context) {
  Rule(params);
  { rule.initial_slot_value(0) } -> std::same_as<float>;
  // All but the learning rate, which every rule reads from context.state.
  { rule.initial_state() } -> std::same_as<OptimizerState>;
  rule.advance(state);
  { decltype(rule.step(context))::kSlots } -> std::convertible_to<int>;
};

// The parts that rules share whose only global state is the learning rate.
struct StatelessRule {
  OptimizerState initial_state() const { return {}; }
  void advance(OptimizerState&) const {}
};

// What a device does for a rule's step: the same, but for rules with an overload.
template <class Step>
inline const Step& device_step(const Step& step) {
  return step;
}

// Updates one row by a step that knows elements alone; steps that need more of a row have an overload. `slots` is the
// first slot; slot k lies k * stride floats behind it.
template <class Step>
inline void update_row(const Step& step, float* __restrict w, float* __restrict slots,
                       [[maybe_unused]] size_t stride, const float* __restrict g, int dim) {
  if constexpr (Step::kSlots == 0) {
    for (int i = 0; i < dim; ++i) step.update(w[i], g[i]);
  } else if constexpr (Step::kSlots == 1) {
    for (int i = 0; i < dim; ++i) step.update(w[i], slots[i], g[i]);
  } else {
    float* __restrict second = slots + stride;
    for (int i = 0; i < dim; ++i) step.update(w[i], slots[i], second[i], g[i]);
  }
}

// One loop over rows for each of VectorExtensions: the same source, since a rule that is inlined is compiled
// for what the function around it may use. `flatten` inlines all of it; a call that stayed one would be of
// the function for every x86-64. Chosen by a pointer and not by the loader (target_clones), which would
// choose before a sanitizer has started.
template <UpdateRule Rule>
using RowLoop = void (*)(const Rule&, std::span<const RowUpdate>, const RowLayout&, const ApplyContext&);

template <UpdateRule Rule>
inline void update_rows(const Rule& rule, std::span<const RowUpdate> rows, const RowLayout& layout,
                        const ApplyContext& context) {
  const auto step = rule.step(context);
  const size_t stride = layout.block_floats();
  const int dim = layout.dim();
  for (const RowUpdate& update : rows) {
    const RowWrite write(*update.guard);
    update_row(step, update.row, update.row + stride, stride, update.gradient, dim);
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

  int slot_count() const override { return decltype(rule_.step({}))::kSlots; }
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
  AnyStep step(const ApplyContext& context) const override { return device_step(rule_.step(context)); }

 private:
  const Rule rule_;
  const double learning_rate_;  // at the start
  const RowLoop<Rule> update_rows_;
};

}  // namespace embstore
