// Reading back which rows a checkpoint has, by several threads.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "access/tier_meter.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "tiers/pool/durable_file.h"
#include "tiers/pool/format.h"
#include "tiers/pool/slot_bits.h"

namespace embstore::pool {

// "FILE: the record in slot S (at byte B) is damaged: WHAT".
std::string damage_of(const DurableFile& rows, const RecordShape& shape, Slot slot, const std::string& what);

// Calls visit(headers, slots) for the records in `slots`, from at most so many threads, each at most once.
// `meter` counts what is read. Throws Error(kStorage) where one isn't what checkpoint `number` may have, or what visit throws.
using VisitHeaders = std::function<void(std::span<const RowHeader> headers, std::span<const Slot> slots)>;
void visit_records(const DurableFile& rows, const RecordShape& shape, const SlotBits& slots, uint64_t number,
                   int threads, TierMeter& meter, const VisitHeaders& visit);

}  // namespace embstore::pool
