// The interface between the update loop and the optimizers' rules.
//
// A rule is a small struct: an optimizer's parameters, and a function that makes the step for one apply from
// them. The step, in rules/ (see rules/adagrad.h), has the formula for one element; GPU kernels compile it,
// too. OptimizerOf makes an Optimizer from a rule. It has one virtual call for a block of rows, inside which
// the compiler inlines and vectorises the step, once for each of VectorExtensions.
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

// An optimizer's parameters, with the names of embstore.optimizers, which validates them.
using OptimizerParams = std::map<std::string, double>;
double parameter(const OptimizerParams& params, const char* name);  // throws Error(kInvalidArgument)

// The state that an optimizer keeps for a table, not for each row. It includes the learning rate, which may
// change between two applies.
struct OptimizerState {
  double beta1_power = 1.0;
  double beta2_power = 1.0;
  double learning_rate = 0.0;
};

// The arguments that the updates of all rows in one apply share.
struct ApplyContext {
  int64_t global_step;
  OptimizerState state;  // before it is advanced for the next apply
};

struct RowUpdate {
  RowGuard* guard;        // the row's guard
  float* row;             // weights, then slots
  const float* gradient;  // RowLayout::dim() floats
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual int slot_count() const = 0;
  virtual float initial_slot_value(int slot) const = 0;
  // Returns the initial values of all slots.
  std::vector<float> initial_slot_values() const {
    std::vector<float> values;
    for (int slot = 0; slot < slot_count(); ++slot) values.push_back(initial_slot_value(slot));
    return values;
  }
  virtual OptimizerState initial_state() const = 0;
  // Advances the state. Called once in each apply, after the apply has copied the state.
  virtual void advance(OptimizerState& state) const = 0;
  // Updates rows of one shard. REQUIRES: the shard's mutex.
  virtual void update(std::span<const RowUpdate> rows, const RowLayout& layout,
                      const ApplyContext& context) const = 0;
  // Returns the step of one apply, for kernels that update rows on a device. They give the bits of update(),
  // unless the rule has a device_step().
  virtual AnyStep step(const ApplyContext& context) const = 0;
};

// Makes the optimizer with this name in embstore.optimizers. Throws Error(kInvalidArgument) if there is none.
// All `extensions` give the same bits; the processor must have them.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerParams& params,
                                          VectorExtensions extensions = chosen_vector_extensions());

template <class Rule>
concept UpdateRule = requires(const Rule rule, const OptimizerParams& params, OptimizerState& state,
                              const ApplyContext& context) {
  Rule(params);
  { rule.initial_slot_value(0) } -> std::same_as<float>;
  // The initial state without the learning rate, which every rule reads from context.state.
  { rule.initial_state() } -> std::same_as<OptimizerState>;
  rule.advance(state);
  { decltype(rule.step(context))::kSlots } -> std::convertible_to<int>;
};

// The base of rules whose only state is the learning rate.
struct StatelessRule {
  OptimizerState initial_state() const { return {}; }
  void advance(OptimizerState&) const {}
};

// Returns the step that a device takes: the same step, except for rules with an overload.
template <class Step>
inline const Step& device_step(const Step& step) {
  return step;
}

// Updates one row by a step that handles each element by itself; steps that need the whole row have an
// overload. `slots` is the first slot; slot k begins k * stride floats behind it.
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

// A loop over rows, compiled from the same source for each of VectorExtensions. `flatten` inlines the whole
// rule, since a function that is called, not inlined, would be compiled for the plain x86-64. The loop is
// chosen by a pointer, because the loader (target_clones) would choose before a sanitizer has started.
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
  const double learning_rate_;  // the initial one
  const RowLoop<Rule> update_rows_;
};

}  // namespace embstore
