// The slots that rows came to since the last take(), each once. The memory is allocated in advance: noting a
// slot can't fail.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "memory/huge_pages.h"
#include "row/place.h"
#include "tiers/memory/slot_set.h"

namespace embstore {

// Not thread-safe: the owner's lock guards it.
class SlotArrivals {
 public:
  // Notes at most `max` of `slots` slots between two calls of take(); with 0, none ever.
  SlotArrivals(uint64_t slots, uint64_t max)
      : max_(max), noted_(max + 1, PageSize::kSmall), is_noted_(max == 0 ? 1 : slots) {}

  void note(Slot slot) {
    if (max_ == 0 || is_noted_.contains(slot)) return;
    if (count_ == max_) {
      missed_any_ = true;
      return;
    }
    is_noted_.add(slot);
    noted_[count_++] = slot;
  }
  void note_too_many() { missed_any_ = max_ != 0; }
  // Appends the noted slots to `slots`. Returns false if there were too many to note.
  bool take(std::vector<Slot>& slots) {
    for (uint64_t i = 0; i < count_; ++i) is_noted_.remove(noted_[i]);
    slots.insert(slots.end(), noted_.data(), noted_.data() + count_);
    count_ = 0;
    return !std::exchange(missed_any_, false);
  }

 private:
  const uint64_t max_;
  const PageArray<Slot> noted_;  // the first count_
  uint64_t count_ = 0;
  bool missed_any_ = false;
  SlotSet is_noted_;
};

}  // namespace embstore
