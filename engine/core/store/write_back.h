// Writes rows that checkpoints want to the pool, while look-ups and updates go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "row/place.h"
#include "store/row_store.h"

namespace embstore {

// The most rows that are written at once. Together with the rows of a demotion they fit into the pool's
// headroom.
inline constexpr size_t kRowsWrittenAtOnce = 1024;
static_assert(kRowsWrittenAtOnce + 2048 <= PoolTier::kHeadroomSlots);

// Writes those of the rows, at most kRowsWrittenAtOnce, that are still in their places and wanted. Rows that
// change or move meanwhile may be left out. Throws Error(kDeviceLost), DamagedRowsError or what the pool
// throws. REQUIRES: no step on the device changes rows while rows there are wanted; no checkpoint begins
// meanwhile.
void write_wanted(RowStore& store, std::span<const RowRef> rows);

// Writes those of the keys' rows that are wanted and that the host can't address: a row must be written
// before it is removed. Throws as write_wanted() does. REQUIRES: as for write_wanted(), and rows change
// places only by a tier's own compaction.
void write_wanted_on_device(RowStore& store, std::span<const int64_t> keys);

}  // namespace embstore
