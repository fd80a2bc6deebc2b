// Conversions of a table's state besides its rows, for checkpoints.
#pragma once

#include "parts/table_parts.h"
#include "parts/table_state.h"
#include "tiers/log/manifest.h"

namespace embstore {

inline TableState state_of(TableParts& table) {
  const MutexLock lock(table.state_mutex);
  return {table.apply_count, table.optimizer_state, table.clock.next_stamp()};
}

inline log::TableMoment moment_of(const TableState& state) {
  return {state.apply_count, state.optimizer.beta1_power, state.optimizer.beta2_power,
          state.optimizer.learning_rate, state.clock};
}
inline TableState state_of(const log::TableMoment& moment) {
  return {moment.apply_count, {moment.beta1_power, moment.beta2_power, moment.learning_rate}, moment.clock};
}

}  // namespace embstore
