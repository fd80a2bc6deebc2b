// Copies rows between their places by slot and batches of rows. `Unit` is what a thread moves at once: 16
// bytes, or one float if a batch's rows are no multiple of 16 bytes.
#pragma once

#include "gpu/kernels/mirror.h"
#include "gpu/kernels/places.h"

namespace embstore::gpu {

template <class Unit>
struct CopyRowsArguments {
  Global<Unit> rows;  // row_units a slot
  uint32_t row_units;
  Global<const uint32_t> slots;  // the slots of the batch's rows; kNoSlot is left out
  Places places;                 // in `slots`
  uint32_t blocks;               // the run's number of blocks
  Global<const uint32_t> order;  // if given: the row of a place is row order[place] of the batch
  Global<Unit> batch;            // batch_units a row
  uint32_t batch_units;          // copied of each row; the weights alone are a row's first units
};

// Calls copy(unit in `rows`, unit in `batch`) for the thread's units.
template <class Unit, class Copy>
inline void for_each_unit(const CopyRowsArguments<Unit>& arguments, const Copy& copy) {
  for_each_place(arguments.places, arguments.slots.count, arguments.blocks, arguments.batch_units,
                 [&](uint64_t place, uint32_t unit) {
                   const uint32_t slot = arguments.slots[place];
                   if (slot == kNoSlot) return;
                   const uint64_t row = arguments.order.count == 0 ? place : arguments.order[place];
                   copy(uint64_t{slot} * arguments.row_units + unit, row * arguments.batch_units + unit);
                 });
}

template <class Unit>
inline void gather_units(const CopyRowsArguments<Unit>& arguments) {
  for_each_unit(arguments, [&](uint64_t in_rows, uint64_t in_batch) {
    arguments.batch[in_batch] = arguments.rows[in_rows];
  });
}

template <class Unit>
inline void scatter_units(const CopyRowsArguments<Unit>& arguments) {
  for_each_unit(arguments, [&](uint64_t in_rows, uint64_t in_batch) {
    arguments.rows[in_rows] = arguments.batch[in_batch];
  });
}

EMBSTORE_KERNEL(gather_rows, CopyRowsArguments<Words4>) { gather_units(arguments); }
EMBSTORE_KERNEL(gather_floats, CopyRowsArguments<float>) { gather_units(arguments); }
// REQUIRES: no slot occurs twice.
EMBSTORE_KERNEL(scatter_rows, CopyRowsArguments<Words4>) { scatter_units(arguments); }
EMBSTORE_KERNEL(scatter_floats, CopyRowsArguments<float>) { scatter_units(arguments); }

template <class Unit>
struct FetchRowsArguments {
  Global<const Unit> batch;  // rows of row_units each, one after the other; may be in pinned memory
  uint32_t row_units;
  // The address of each of the batch's rows in pinned host memory; no address if the row lies in the batch.
  Global<const DeviceAddress> elsewhere;
  Global<const uint32_t> places;  // the place in `rows` of each row of the batch
  Global<const uint32_t> order;   // if given: the row at a place is row order[place]
  Global<const uint32_t> count;   // one element: how many rows the batch has
  Global<Unit> rows;
  uint32_t blocks;  // the run's number of blocks
};

// A thread copies units that are far apart, so that the grid need not be as large as the largest batch: most
// batches are small.
template <class Unit>
inline void fetch_units(const FetchRowsArguments<Unit>& arguments) {
  const uint64_t end = uint64_t{arguments.count[0]} * arguments.row_units;
  const uint64_t step = uint64_t{arguments.blocks} * block_threads();
  for (uint64_t i = uint64_t{block_index()} * block_threads() + thread_index(); i < end; i += step) {
    const uint64_t number = i / arguments.row_units;
    const uint64_t in_row = i % arguments.row_units;
    const DeviceAddress elsewhere = arguments.elsewhere[number];
    const Global<const Unit> row_there{elsewhere, arguments.row_units};
    const Unit unit = elsewhere ? row_there[in_row] : arguments.batch[i];
    const uint32_t place = arguments.places[number];
    const uint64_t row = arguments.order.count == 0 ? place : arguments.order[place];
    arguments.rows[row * arguments.row_units + in_row] = unit;
  }
}

EMBSTORE_KERNEL(fetch_rows, FetchRowsArguments<Words4>) { fetch_units(arguments); }
EMBSTORE_KERNEL(fetch_floats, FetchRowsArguments<float>) { fetch_units(arguments); }

}  // namespace embstore::gpu
