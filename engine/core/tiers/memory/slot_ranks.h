// The ranks of the rows in a memory tier's slots: kept in DRAM, apart from the rows, so that the search for
// the coldest rows reads nothing else.
//
// A first tier, where rows are accessed, has 32 bytes a slot: its key, and updates and served accesses apart,
// since two threads count them. A tier below it has 16 bytes, since rows mostly come and go there. Both have
// the pins.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "memory/huge_pages.h"
#include "platform/prefetch.h"
#include "row/place.h"
#include "row/ranking.h"

namespace embstore {

class SlotRanks {
 public:
  SlotRanks(uint64_t slots, uint64_t max_slots, bool accessed)
      : words_a_slot_(accessed ? 4 : 2), words_(slots * words_a_slot_, max_slots * words_a_slot_) {}

  static constexpr size_t kBytesPerAccessedSlot = 4 * sizeof(uint64_t);

  void extend_to(uint64_t slots) { words_.extend_to(slots * words_a_slot_); }

  void discard(uint64_t begin, uint64_t end) { words_.discard(begin * words_a_slot_, end * words_a_slot_); }

  // Sets the rank of a row that comes to a slot.
  void fill(Slot slot, int64_t key, uint64_t frequency, uint64_t served, uint64_t stamp) {
    std::atomic<uint64_t>* const words = words_of(slot);
    if (words_a_slot_ == 4) {
      words[kCount].store(frequency & kCountBits, std::memory_order_relaxed);
      words[kServed].store(served, std::memory_order_relaxed);
      words[kKey].store(static_cast<uint64_t>(key), std::memory_order_relaxed);
    } else {
      words[kCount].store((frequency + served) & kCountBits, std::memory_order_relaxed);
    }
    // Last: only now is the slot filled.
    words[kStamp].store(std::max(stamp, AccessClock::kFirstStamp), std::memory_order_release);
  }
  // Changes the row's rank; its pins stay. REQUIRES: below a first tier, and the mutex of the row's shard is
  // held.
  void set(Slot slot, uint64_t count, uint64_t stamp) { count_update(slot, count, stamp, pins(slot)); }
  void empty(Slot slot) { words_of(slot)[kStamp].store(0, std::memory_order_relaxed); }
  bool is_filled(Slot slot) const { return words_of(slot)[kStamp].load(std::memory_order_acquire) != 0; }

  Rank rank(Slot slot, CacheStrategy strategy) const {
    const std::atomic<uint64_t>* const words = words_of(slot);
    uint64_t count = words[kCount].load(std::memory_order_relaxed) & kCountBits;
    if (words_a_slot_ == 4) count += words[kServed].load(std::memory_order_relaxed);
    return Rank::of(strategy, count, words[kStamp].load(std::memory_order_relaxed));
  }
  void prefetch(Slot slot) const { prefetch_line(words_of(slot)); }

  // --- Only in a first tier.
  // Returns the key of the row that fills the slot, or filled it last.
  int64_t key(Slot slot) const {
    return static_cast<int64_t>(words_of(slot)[kKey].load(std::memory_order_relaxed));
  }
  uint64_t served(Slot slot) const { return words_of(slot)[kServed].load(std::memory_order_relaxed); }
  uint64_t stamp(Slot slot) const { return words_of(slot)[kStamp].load(std::memory_order_relaxed); }
  // Counts serving look-ups' accesses to the key's row in the slot. Returns false, and counts nothing, if the
  // row has left. One thread at a time may call it.
  bool count_served(Slot slot, int64_t key, const ServedAccesses& accesses) {
    std::atomic<uint64_t>* const words = words_of(slot);
    uint64_t last = words[kStamp].load(std::memory_order_acquire);
    if (last == 0 || this->key(slot) != key) return false;
    words[kServed].store(words[kServed].load(std::memory_order_relaxed) + accesses.count,
                         std::memory_order_relaxed);
    // An update may stamp the row at the same time. Only a nonzero stamp is replaced: the slot of a row that
    // leaves meanwhile stays free.
    while (last != 0 && last < accesses.stamp &&
           !words[kStamp].compare_exchange_weak(last, accesses.stamp, std::memory_order_relaxed)) {
    }
    return last != 0;
  }

  // --- Pins: a pinned row stays in its slot, or comes up with its pins. All of these REQUIRE the mutex of
  // the row's shard.
  void pin(Slot slot, uint64_t times = 1) {
    std::atomic<uint64_t>& count = words_of(slot)[kCount];
    count.store(count.load(std::memory_order_relaxed) + times * kOnePin, std::memory_order_relaxed);
  }
  void unpin(Slot slot) {
    std::atomic<uint64_t>& count = words_of(slot)[kCount];
    count.store(count.load(std::memory_order_relaxed) - kOnePin, std::memory_order_relaxed);
  }
  uint64_t pins(Slot slot) const { return words_of(slot)[kCount].load(std::memory_order_relaxed) / kOnePin; }
  // Records an update at `stamp` that brought the row's frequency to `frequency`.
  void count_update(Slot slot, uint64_t frequency, uint64_t stamp) {
    count_update(slot, frequency, stamp, pins(slot));
  }
  // The same, by an update whose pin ends with it.
  void count_update_and_unpin(Slot slot, uint64_t frequency, uint64_t stamp) {
    count_update(slot, frequency, stamp, pins(slot) - 1);
  }

 private:
  void count_update(Slot slot, uint64_t frequency, uint64_t stamp, uint64_t pins_left) {
    std::atomic<uint64_t>* const words = words_of(slot);
    words[kCount].store((frequency & kCountBits) + pins_left * kOnePin, std::memory_order_relaxed);
    std::atomic<uint64_t>& last = words[kStamp];
    if (last.load(std::memory_order_relaxed) < stamp) last.store(stamp, std::memory_order_relaxed);
  }

  // The words of a slot. A stamp of 0 means that the slot is free. In a first tier the count is that of
  // updates, elsewhere that of all accesses; the pins are above its lower 48 bits.
  static constexpr size_t kCount = 0;
  static constexpr size_t kStamp = 1;
  static constexpr size_t kServed = 2;
  static constexpr size_t kKey = 3;
  static constexpr uint64_t kOnePin = uint64_t{1} << 48;
  static constexpr uint64_t kCountBits = kOnePin - 1;

  std::atomic<uint64_t>* words_of(Slot slot) const { return words_.data() + slot * words_a_slot_; }

  const size_t words_a_slot_;
  PageArray<std::atomic<uint64_t>> words_;
};

}  // namespace embstore
