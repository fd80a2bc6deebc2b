// Reads the rows of a checkpoint for a tier that restores it, on several threads.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/row_bits.h"

namespace embstore::log {

struct ExtentSlots {
  Slot first;  // of record 0
  RowWords rows;
};

// Appends the header of each slot of the extent to `headers`, or throws. The slots are in ascending order.
using ReadHeaders =
    std::function<void(size_t extent, std::span<const Slot> slots, std::vector<RowHeader>& headers)>;

// Calls read and then visit for all rows of the extents, in pieces of at most `records_at_once` records, but
// of 64 at least. Rethrows what they throw.
void restore_rows(std::span<const ExtentSlots> extents, size_t records_at_once, int threads,
                  const ReadHeaders& read, const DurableTier::Restored& visit);

}  // namespace embstore::log
