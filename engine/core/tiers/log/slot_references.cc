#include "tiers/log/slot_references.h"

#include <algorithm>
#include <utility>

namespace embstore::log {

const SlotReferences::Entry* SlotReferences::find(uint64_t number) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [number](const Entry& entry) { return entry.number == number; });
  return found == entries_.end() ? nullptr : &*found;
}

SlotReferences::Entry* SlotReferences::find(uint64_t number) {
  return const_cast<Entry*>(std::as_const(*this).find(number));
}

SlotReferences::Entry& SlotReferences::make(uint64_t number) {
  Entry& entry = *find(0);
  if (entry.bits == nullptr) entry.bits = std::make_unique<RowBits>(slots_);
  entry.number = number;
  return entry;
}

bool SlotReferences::in_any_checkpoint(Slot slot) const {
  return std::any_of(entries_.begin(), entries_.end(), [slot](const Entry& entry) {
    return entry.bits != nullptr && entry.bits->contains(slot);
  });
}

bool SlotReferences::remove_live(Slot slot) {
  const MutexLock lock(stripe(slot / 64));
  live_.remove(slot);
  return !in_any_checkpoint(slot);
}

void SlotReferences::begin(uint64_t number) {
  Entry& entry = make(number);
  entry.bits->assign(live_.copy(slots_));
  entry.pending.store(number, std::memory_order_relaxed);
}

void SlotReferences::load(uint64_t number, std::span<const uint64_t> words) {
  make(number).bits->assign(words);
}

void SlotReferences::make_live(uint64_t number) { live_.assign(bits(number).copy(slots_)); }

RowWords SlotReferences::taken() const {
  RowWords words = live_.copy(slots_);
  for (const Entry& entry : entries_) {
    for (size_t i = 0; entry.number != 0 && i < words.size(); ++i) words[i] |= entry.bits->word(i);
  }
  return words;
}

uint64_t SlotReferences::oldest_pending() const {
  uint64_t oldest = 0;
  for (const Entry& entry : entries_) {
    const uint64_t number = entry.pending.load(std::memory_order_relaxed);
    if (number != 0 && (oldest == 0 || number < oldest)) oldest = number;
  }
  return oldest;
}

bool SlotReferences::add_to_pending(uint64_t first_number, Slot slot) {
  const MutexLock lock(stripe(slot / 64));
  for (Entry& entry : entries_) {
    const uint64_t number = entry.pending.load(std::memory_order_relaxed);
    if (number != 0 && number >= first_number) entry.bits->add(slot);
  }
  return !live_.contains(slot) && !in_any_checkpoint(slot);
}

void SlotReferences::settle(uint64_t number) { find(number)->pending.store(0, std::memory_order_relaxed); }

void SlotReferences::drop(uint64_t number, const Freed& freed) {
  Entry& entry = *find(number);
  // A thread that adds to it holds the stripe of the slot: it either sees this, or is seen below.
  entry.pending.store(0, std::memory_order_relaxed);
  RowBits& bits = *entry.bits;
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
        for (const Entry& other : entries_) {
          if (other.bits != nullptr) unneeded &= ~other.bits->word(i);
        }
        for_each_row(unneeded, i * 64, [&](uint64_t slot) { free.push_back(static_cast<Slot>(slot)); });
      }
    }
    if (free.empty()) continue;
    std::reverse(free.begin(), free.end());
    freed(free);
    free.clear();
  }
  entry.number = 0;
}

}  // namespace embstore::log
