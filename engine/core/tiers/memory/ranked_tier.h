// A tier that gives up the coldest of its rows, as they see it who look for those.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "row/place.h"
#include "tiers/memory/slot_ranks.h"

namespace embstore {

class RankedTier {
 public:
  virtual ~RankedTier() = default;

  virtual SlotRanks& ranks() const = 0;
  virtual uint64_t slot_count() const = 0;
  virtual uint64_t most_slots() const = 0;  // that there may ever be
  // Slots from here on were never taken.
  virtual uint64_t untouched_from() const = 0;
  // Of the row that fills the slot, or filled it last.
  virtual int64_t key(Slot slot) const = 0;
  // Keys lie with the ranks, so that asking for one touches no row.
  virtual bool keys_lie_apart() const = 0;
  // Adds to `slots` those that rows came to since the last call, each once. False where there were too many to be noted.
  virtual bool take_arrivals(std::vector<Slot>& slots) = 0;
  // A first tier's slots may be noted before rows fill them.
  virtual bool is_first() const = 0;

  // Accesses may be counted elsewhere first: a row's rank here is then no higher than it is. Nothing counts while rows are
  // chosen.
  virtual bool ranks_lag() const { return false; }
  // Brings the ranks of the rows in these slots up to date. Throws Error(kDeviceLost).
  virtual void refresh_ranks(std::span<const Slot>) {}
};

}  // namespace embstore
