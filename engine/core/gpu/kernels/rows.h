// Copies of rows between where they lie, by slot, and batches of them. `Unit` is what a thread moves: 16 bytes, or
// a float where a batch's rows are no multiple of 16 bytes.
#pragma once

#include "gpu/kernels/mirror.h"

namespace embstore::gpu {

template <class Unit>
struct CopyRowsArguments {
  Global<Unit> rows;  // of row_units each, by slot
  uint32_t row_units;
  Global<const uint32_t> slots;    // of the batch's rows; what has kNoSlot is left out
  Global<const uint32_t> inverse;  // where given: row i of the batch has the slot slots[inverse[i]]
  Global<const uint32_t> count;    // one: how many rows the batch has; none: all that there is room for
  Global<Unit> batch;              // of batch_units each
  uint32_t batch_units;            // copied of each row: the weights alone are its first ones
};

// The thread's unit, by its number: row `number / batch_units` of the batch. The host launches one thread a unit.
template <class Unit>
struct UnitOfRow {
  explicit UnitOfRow(const CopyRowsArguments<Unit>& arguments) {
    const uint64_t number = uint64_t{block_index()} * block_threads() + thread_index();
    const uint64_t i = number / arguments.batch_units;
    if (number >= arguments.batch.count) return;
    if (arguments.count.count != 0 && i >= arguments.count[0]) return;
    const uint32_t slot = arguments.slots[arguments.inverse.count == 0 ? i : arguments.inverse[i]];
    if (slot == kNoSlot) return;
    exists = true;
    in_batch = number;
    in_rows = uint64_t{slot} * arguments.row_units + number % arguments.batch_units;
  }

  bool exists = false;
  uint64_t in_batch = 0;
  uint64_t in_rows = 0;
};

template <class Unit>
inline void gather_unit(const CopyRowsArguments<Unit>& arguments) {
  const UnitOfRow<Unit> unit(arguments);
  if (unit.exists) arguments.batch[unit.in_batch] = arguments.rows[unit.in_rows];
}

template <class Unit>
inline void scatter_unit(const CopyRowsArguments<Unit>& arguments) {
  const UnitOfRow<Unit> unit(arguments);
  if (unit.exists) arguments.rows[unit.in_rows] = arguments.batch[unit.in_batch];
}

EMBSTORE_KERNEL(gather_rows, CopyRowsArguments<Words4>) { gather_unit(arguments); }
EMBSTORE_KERNEL(gather_floats, CopyRowsArguments<float>) { gather_unit(arguments); }
// REQUIRES: no slot occurs twice.
EMBSTORE_KERNEL(scatter_rows, CopyRowsArguments<Words4>) { scatter_unit(arguments); }
EMBSTORE_KERNEL(scatter_floats, CopyRowsArguments<float>) { scatter_unit(arguments); }

template <class Unit>
struct FetchRowsArguments {
  Global<const Unit> batch;  // rows of row_units each, one after the other: in pinned memory, say
  uint32_t row_units;
  Global<const uint32_t> positions;  // of each row of the batch, in `rows`
  Global<const uint32_t> count;      // one: how many rows the batch has
  Global<Unit> rows;
  uint32_t blocks;  // of the run
};

// A thread copies units far apart, so that a grid need not be as large as the largest batch: most batches are small.
template <class Unit>
inline void fetch_units(const FetchRowsArguments<Unit>& arguments) {
  const uint64_t end = uint64_t{arguments.count[0]} * arguments.row_units;
  const uint64_t step = uint64_t{arguments.blocks} * block_threads();
  for (uint64_t i = uint64_t{block_index()} * block_threads() + thread_index(); i < end; i += step) {
    const uint64_t row = arguments.positions[i / arguments.row_units];
    arguments.rows[row * arguments.row_units + i % arguments.row_units] = arguments.batch[i];
  }
}

EMBSTORE_KERNEL(fetch_rows, FetchRowsArguments<Words4>) { fetch_units(arguments); }
EMBSTORE_KERNEL(fetch_floats, FetchRowsArguments<float>) { fetch_units(arguments); }

}  // namespace embstore::gpu
