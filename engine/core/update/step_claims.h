// Slots and places that a step on the device claims before it begins, since it can't wait for room later.
#pragma once

#include "store/inclusive_cache.h"
#include "tiers/memory/slot_allocator.h"

namespace embstore {

struct StepClaims {
  SlotClaim slots;   // in the first tier
  PoolClaim places;  // in the pool, if there is one

  // Splits off the claims for `rows` rows. REQUIRES: there are that many.
  StepClaims split(uint64_t rows) { return {slots.split(rows), places.split(rows)}; }
};

}  // namespace embstore
