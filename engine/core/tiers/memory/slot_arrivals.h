// Slots that rows came to since the last look, each once, in memory that is there beforehand: noting one can't fail.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/huge_pages.h"
#include "row/place.h"
#include "tiers/memory/slot_set.h"

namespace embstore {

// Guarded by its owner.
class SlotArrivals {
 public:
  // At most `most` of `slots` are noted between two looks; none ever, if that's 0.
  SlotArrivals(uint64_t slots, uint64_t most)
      : most_(most), noted_(most + 1, PageSize::kSmall), is_noted_(most == 0 ? 1 : slots) {}

  void note(Slot slot) {
    if (most_ == 0 || is_noted_.contains(slot)) return;
    if (count_ == most_) {
      missed_any_ = true;
      return;
    }
    is_noted_.add(slot);
    noted_[count_++] = slot;
  }
  void note_too_many() { missed_any_ = most_ != 0; }
  // Adds them to `slots`. False where there were too many to be noted.
  bool take(std::vector<Slot>& slots) {
    for (uint64_t i = 0; i < count_; ++i) is_noted_.remove(noted_[i]);
    slots.insert(slots.end(), noted_.data(), noted_.data() + count_);
    count_ = 0;
    return !std::exchange(missed_any_, false);
  }

 private:
  const uint64_t most_;
  const PageArray<Slot> noted_;  // the first count_
  uint64_t count_ = 0;
  bool missed_any_ = false;
  SlotSet is_noted_;
};

}  // namespace embstore
