// What is claimed for an update before it begins, by who can't wait for room, or make any: a step on the device.
#pragma once

#include "store/inclusive_cache.h"
#include "tiers/memory/slot_allocator.h"

namespace embstore {

struct StepClaims {
  SlotClaim slots;   // of the first tier
  PoolClaim places;  // of the pool, if there is one

  // Of these, what so many rows may need. REQUIRES: there is as much.
  StepClaims split(uint64_t rows) { return {slots.split(rows), places.split(rows)}; }
};

}  // namespace embstore
