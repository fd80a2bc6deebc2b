// What a table hands to a checkpoint beside its rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "row/row_batch.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

// What a table keeps once rather than once a row.
struct TableState {
  int64_t apply_count = 0;
  OptimizerState optimizer;
  uint64_t clock = 0;  // that of rows' stamps, see ranking.h
};

// Which rows go when a table is saved, and which keys that wait for one.
struct EvictionRule {
  std::optional<int64_t> least_version;     // rows of an earlier version, and waiting keys
  std::optional<double> least_half_square;  // rows where half the sum of the weights' squares is less

  bool any() const { return least_version || least_half_square; }
  bool evicts(const RowHeader& header, const float* weights, int dim) const;
};

struct SavedTable {
  TableState state;
  uint64_t rows_left = 0;        // in the table, whether saved now or before
  uint64_t number = 0;           // for Table::save_succeeded()
  std::vector<int64_t> skipped;  // keys of damaged rows, ascending
};

}  // namespace embstore
