#include "parts/table_parts.h"

#include "errors/error.h"
#include "tiers/hbm/hbm_tier.h"

namespace embstore {

TableParts::TableParts(const TableSpec& spec)
    : name(spec.name),
      optimizer(make_optimizer(spec.optimizer, spec.optimizer_params)),
      slot_values(optimizer->initial_slot_values()),
      layout(spec.dim, optimizer->slot_count()),
      initial(spec.default_values, spec.dim, spec.no_permission_value),
      filters(spec.filter),
      optimizer_state(optimizer->initial_state()),
      store(std::make_unique<RowStore>(make_tiers(spec.name, spec.optimizer, layout, spec.tiers), layout,
                                       epochs)),
      steps(store->tiers().hbm() ? std::make_unique<DeviceSteps>(store->tiers().hbm()->device()) : nullptr),
      device_look_up(steps ? std::make_unique<DeviceLookUp>(*store->tiers().hbm(), *steps,
                                                            static_cast<size_t>(layout.dim()))
                           : nullptr),
      device_apply(steps ? std::make_unique<DeviceApply>(*store->tiers().hbm(), *steps, layout) : nullptr),
      device_prefetch(steps ? std::make_unique<DevicePrefetch>(*store->tiers().hbm(), *steps) : nullptr),
      mover(store->tiers().size() > 1 ? std::make_unique<Mover>(*store, spec.cache_strategy, steps.get())
                                      : nullptr) {}

Operation::Operation(TableParts& table, Uses uses)
    : use_(uses == Uses::kNoRows ? nullptr : table.steps.get(),
           uses == Uses::kRowsForLong ? DeviceSteps::Length::kLong : DeviceSteps::Length::kShort),
      guard_(table.epochs.enter()) {
  if (table.closed.load()) throw Error(ErrorKind::kClosed, table.name + " is closed");
}

Standstill::Standstill(TableParts& table) : table_(table) {
  table_.gate.enter_alone();
  if (!table_.mover) return;
  try {
    moves_.emplace(*table_.mover);
    moves_->settle();
  } catch (const std::exception&) {
    // Rows that can't move are where they were: the caller works on them there.
  }
}

Standstill::~Standstill() {
  moves_.reset();
  table_.gate.leave_alone();
}

}  // namespace embstore
