// Which slot the record with a sequence number has, and back.
#pragma once

#include <cstdint>

#include "row/place.h"

namespace embstore {

constexpr uint64_t kLevelDbSlots = uint64_t{RowRef::kMaxSlots} + 1;

constexpr Slot leveldb_slot(uint64_t sequence) { return static_cast<Slot>(sequence % kLevelDbSlots); }

// The greatest sequence number below `end` whose slot this is. REQUIRES: there is one.
constexpr uint64_t newest_leveldb_sequence(Slot slot, uint64_t end) {
  return end - 1 - (end - 1 - slot) % kLevelDbSlots;
}

}  // namespace embstore
