// A tier that gives up its coldest rows, as the code that looks for cold rows sees it.
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
  virtual uint64_t max_slots() const = 0;  // the most that there may ever be
  // Returns the first slot that was never taken.
  virtual uint64_t first_never_taken() const = 0;
  // Returns the key of the row that fills the slot, or filled it last.
  virtual int64_t key(Slot slot) const = 0;
  // Returns whether keys lie with the ranks, so that asking for a key touches no row.
  virtual bool keys_are_with_ranks() const = 0;
  // Appends to `slots` those that rows came to since the last call, each once. Returns false if there were
  // too many to note.
  virtual bool take_arrivals(std::vector<Slot>& slots) = 0;
  // Returns whether this is the first tier, whose slots may be noted as arrivals before rows fill them.
  virtual bool is_first() const = 0;

  // Returns whether accesses may be counted elsewhere first: a rank here is then a lower bound. Nothing is
  // counted while rows are chosen.
  virtual bool ranks_lag() const { return false; }
  // Brings the ranks of the rows in these slots up to date. Throws Error(kDeviceLost).
  virtual void refresh_ranks(std::span<const Slot>) {}
};

}  // namespace embstore
