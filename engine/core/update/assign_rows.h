// An update rule that sets rows to given values, as `put` and restores do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "errors/error.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

// Its "gradient" is the new row: dim weights and, if `with_slots`, dim floats for each slot of `own`, the
// table's optimizer, all without padding. Without `with_slots`, rows keep their slots, and new rows get the
// initial slots of `own`.
class AssignRows final : public Optimizer {
 public:
  AssignRows(const Optimizer& own, bool with_slots) : own_(own), with_slots_(with_slots) {}

  int value_floats(const RowLayout& layout) const { return layout.dim() * blocks(layout); }

  int slot_count() const override { return own_.slot_count(); }
  float initial_slot_value(int slot) const override { return own_.initial_slot_value(slot); }
  OptimizerState initial_state() const override { return own_.initial_state(); }
  void advance(OptimizerState&) const override {}
  void update(std::span<const RowUpdate> rows, const RowLayout& layout, const ApplyContext&) const override {
    const auto dim = static_cast<size_t>(layout.dim());
    for (const RowUpdate& update : rows) {
      const RowWrite write(*update.guard);
      for (size_t b = 0; b < static_cast<size_t>(blocks(layout)); ++b) {
        std::copy_n(update.gradient + b * dim, dim, update.row + b * layout.block_floats());
      }
    }
  }
  AnyStep step(const ApplyContext&) const override {
    throw Error(ErrorKind::kInvalidArgument, "rows are set by the host alone");
  }

 private:
  int blocks(const RowLayout& layout) const { return with_slots_ ? 1 + layout.slot_count() : 1; }

  const Optimizer& own_;
  const bool with_slots_;
};

}  // namespace embstore
