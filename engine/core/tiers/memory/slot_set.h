// A set of slots, one bit each. Only the pages of slots that are used take memory.
#pragma once

#include <cstdint>

#include "memory/huge_pages.h"
#include "row/place.h"

namespace embstore {

class SlotSet {
 public:
  explicit SlotSet(uint64_t slots) : words_(slots / 64 + 1, PageSize::kSmall) {}

  bool contains(Slot slot) const { return (words_[slot / 64] >> (slot % 64) & 1) != 0; }
  void add(Slot slot) { words_[slot / 64] |= uint64_t{1} << (slot % 64); }
  void remove(Slot slot) { words_[slot / 64] &= ~(uint64_t{1} << (slot % 64)); }

 private:
  PageArray<uint64_t> words_;
};

}  // namespace embstore
