#include "tiers/pool/slot_references.h"

#include <algorithm>

namespace embstore::pool {

bool SlotReferences::in_any_checkpoint(Slot slot) const {
  return std::any_of(allocated_.begin(), allocated_.begin() + allocated_count_,
                     [slot](const SlotBits* bits) { return bits->contains(slot); });
}

bool SlotReferences::remove_live(Slot slot) {
  const MutexLock lock(stripe(slot / 64));
  live_.remove(slot);
  return !in_any_checkpoint(slot);
}

SlotBits& SlotReferences::allocate(size_t entry) {
  if (bits_[entry] == nullptr) {
    bits_[entry] = std::make_unique<SlotBits>(slots_);
    allocated_[allocated_count_++] = bits_[entry].get();
  }
  return *bits_[entry];
}

void SlotReferences::begin(size_t entry, uint64_t number) {
  allocate(entry).copy_from(live_);
  pending_[entry].store(number, std::memory_order_relaxed);
}

void SlotReferences::load(size_t entry, std::span<const uint64_t> words) {
  SlotBits& bits = allocate(entry);
  for (size_t i = 0; i < words.size(); ++i) bits.set_word(i, words[i]);
}

std::vector<uint64_t> SlotReferences::taken() const {
  std::vector<uint64_t> words(live_.words());
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = live_.word(i);
    for (size_t b = 0; b < allocated_count_; ++b) words[i] |= allocated_[b]->word(i);
  }
  return words;
}

bool SlotReferences::add_to_pending(uint64_t first_number, Slot slot) {
  const MutexLock lock(stripe(slot / 64));
  for (size_t entry = 0; entry < kEntries; ++entry) {
    const uint64_t number = pending_[entry].load(std::memory_order_relaxed);
    if (number == 0 || number < first_number) continue;
    bits_[entry]->add(slot);
  }
  return !live_.contains(slot) && !in_any_checkpoint(slot);
}

void SlotReferences::drop(size_t entry, const Freed& freed) {
  // Who adds to it holds the stripe of the slot: either sees this, or is seen below.
  settle(entry);
  SlotBits& bits = *bits_[entry];
  std::vector<Slot> free;
  free.reserve(kWordsARun * 64);
  const size_t runs = (bits.words() + kWordsARun - 1) / kWordsARun;
  for (size_t run = runs; run-- > 0;) {
    const size_t first = run * kWordsARun;
    const size_t end = std::min(first + kWordsARun, bits.words());
    {
      const MutexLock lock(stripe(first));
      for (size_t i = first; i < end; ++i) {
        uint64_t unneeded = bits.word(i);
        if (unneeded == 0) continue;
        bits.set_word(i, 0);
        unneeded &= ~live_.word(i);
        for (size_t b = 0; b < allocated_count_; ++b) unneeded &= ~allocated_[b]->word(i);
        for_each_slot(unneeded, i * 64, [&](Slot slot) { free.push_back(slot); });
      }
    }
    if (free.empty()) continue;
    std::reverse(free.begin(), free.end());
    freed(free);
    free.clear();
  }
}

}  // namespace embstore::pool
