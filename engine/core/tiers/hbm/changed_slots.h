// Slots whose rows came or left since they were last looked at. Its memory is allocated in advance, so noting
// a slot can't fail.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "memory/huge_pages.h"
#include "row/place.h"

namespace embstore {

class ChangedSlots {
 public:
  explicit ChangedSlots(uint64_t slots)
      : words_(slots / kBits + 1, PageSize::kSmall), any_(words_.size() / kBits + 1, PageSize::kSmall) {}

  // May be called by any thread.
  void note(Slot slot) {
    if (set(words_, slot)) set(any_, slot / kBits);
  }
  bool contains(Slot slot) const {
    return (words_[slot / kBits].load(std::memory_order_relaxed) & bit(slot)) != 0;
  }

  // Calls visit(slot) for each noted slot, in order. REQUIRES for this and clear(): no thread notes slots
  // meanwhile.
  template <class Visit>
  void for_each(Visit visit) const {
    visit_bits(any_, 0, any_.size(), [&](uint64_t word) {
      visit_bits(words_, word, word + 1, [&](uint64_t slot) { visit(static_cast<Slot>(slot)); });
    });
  }
  void clear() {
    visit_bits(any_, 0, any_.size(),
               [&](uint64_t word) { words_[word].store(0, std::memory_order_relaxed); });
    for (uint64_t i = 0; i < any_.size(); ++i) any_[i].store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kBits = 64;
  using Words = PageArray<std::atomic<uint64_t>>;

  static uint64_t bit(uint64_t i) { return uint64_t{1} << (i % kBits); }
  // Returns false if the bit was set already.
  static bool set(const Words& words, uint64_t i) {
    std::atomic<uint64_t>& word = words[i / kBits];
    if ((word.load(std::memory_order_relaxed) & bit(i)) != 0) return false;
    word.fetch_or(bit(i), std::memory_order_relaxed);
    return true;
  }
  template <class Visit>
  static void visit_bits(const Words& words, uint64_t begin, uint64_t end, Visit visit) {
    for (uint64_t i = begin; i < end; ++i) {
      for (uint64_t left = words[i].load(std::memory_order_relaxed); left != 0; left &= left - 1) {
        visit(i * kBits + static_cast<uint64_t>(std::countr_zero(left)));
      }
    }
  }

  Words words_;  // a bit a slot
  Words any_;    // a bit for each word: whether it may have bits set
};

}  // namespace embstore
