// The state of a table besides its rows, for checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "row/row_batch.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

// The state that a table keeps once, not per row.
struct TableState {
  int64_t apply_count = 0;
  OptimizerState optimizer;
  uint64_t clock = 0;  // of the rows' stamps; see ranking.h
};

// Selects the rows, and the waiting keys, that are evicted when a table is saved.
struct EvictionRule {
  std::optional<int64_t> min_version;     // evicts rows and waiting keys of an earlier version
  std::optional<double> min_half_square;  // evicts rows with a smaller half sum of squared weights

  bool any() const { return min_version || min_half_square; }
  bool evicts(const RowHeader& header, const float* weights, int dim) const;
};

struct SavedTable {
  TableState state;
  uint64_t rows_left = 0;        // in the table, whether this save wrote them or one before
  uint64_t number = 0;           // for Table::save_succeeded()
  std::vector<int64_t> skipped;  // keys of damaged rows, ascending
};

}  // namespace embstore
