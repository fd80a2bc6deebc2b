// One bit a slot, in words that threads may change at the same time.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/huge_pages.h"
#include "row/place.h"
#include "tiers/pool/format.h"

namespace embstore::pool {

class SlotBits {
 public:
  explicit SlotBits(uint64_t slots) : words_(bitmap_words(slots)) {}

  size_t words() const { return words_.size(); }
  uint64_t word(size_t i) const { return words_[i].load(std::memory_order_relaxed); }
  void set_word(size_t i, uint64_t bits) { words_[i].store(bits, std::memory_order_relaxed); }

  bool contains(Slot slot) const { return (word(slot / 64) & bit(slot)) != 0; }
  void add(Slot slot) { words_[slot / 64].fetch_or(bit(slot), std::memory_order_relaxed); }
  void remove(Slot slot) { words_[slot / 64].fetch_and(~bit(slot), std::memory_order_relaxed); }
  void remove_all() {
    for (size_t i = 0; i < words(); ++i) set_word(i, 0);
  }

  uint64_t count() const {
    uint64_t bits = 0;
    for (size_t i = 0; i < words(); ++i) bits += static_cast<uint64_t>(std::popcount(word(i)));
    return bits;
  }
  void copy_from(const SlotBits& other) {
    for (size_t i = 0; i < words(); ++i) set_word(i, other.word(i));
  }

 private:
  static uint64_t bit(Slot slot) { return uint64_t{1} << (slot % 64); }

  PageArray<std::atomic<uint64_t>> words_;
};

// Calls visit(slot) for each bit of a word of the slots from `first` on.
template <class Visit>
void for_each_slot(uint64_t word, size_t first, Visit visit) {
  for (; word != 0; word &= word - 1) {
    visit(static_cast<Slot>(first + static_cast<size_t>(std::countr_zero(word))));
  }
}

}  // namespace embstore::pool
