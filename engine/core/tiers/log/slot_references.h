// What refers to each slot of a pool: a live row, and checkpoints. The caller that takes the last reference to a slot away is
// told, once: the slot is free then.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "row/place.h"
#include "threads/mutex.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/row_bits.h"

namespace embstore::log {

class SlotReferences {
 public:
  explicit SlotReferences(uint64_t slots) : slots_(slots), live_(slots) {}

  // --- Live rows. REQUIRES, of add_live: nothing refers to the slot.
  void add_live(Slot slot) { live_.add(slot); }
  // True: nothing refers to the slot any more.
  bool remove_live(Slot slot);
  uint64_t live_slots() const { return live_.count(); }

  // --- Checkpoints, by their numbers. REQUIRES, unless said otherwise: no other call is under way.
  // All that is live belongs to it, and it's pending. Throws std::bad_alloc or Error(kStorage); nothing has changed then.
  void begin(uint64_t number);
  // One that is kept, from an earlier process.
  void load(uint64_t number, std::span<const uint64_t> words);
  // What belongs to it is live, and nothing else.
  void make_live(uint64_t number);
  RowWords taken() const;  // all that something refers to
  bool has(uint64_t number) const { return find(number) != nullptr; }
  const RowBits& bits(uint64_t number) const { return *find(number)->bits; }
  // The smallest that is pending; 0 where none is.
  uint64_t oldest_pending() const;
  // To each pending one from `first_number` on. True: nothing refers to the slot, for there's none. Thread-safe.
  bool add_to_pending(uint64_t first_number, Slot slot);
  // It's pending no more, and its bits don't change until it's dropped. Thread-safe.
  void settle(uint64_t number);
  // Takes its references away, and tells of slots that nothing refers to any more, the highest first. Thread-safe.
  using Freed = std::function<void(std::span<const Slot> slots)>;
  void drop(uint64_t number, const Freed& freed);

 private:
  // The bits, once needed, stay; they are empty where there is no checkpoint.
  struct Entry {
    uint64_t number = 0;               // 0: no checkpoint
    std::atomic<uint64_t> pending{0};  // the number; 0 where it isn't pending
    std::unique_ptr<RowBits> bits;
  };
  // Slots that lie together share a lock. Those who take references away hold it: of two at once, one must see that it was the
  // last.
  static constexpr size_t kStripes = 64;
  static constexpr size_t kWordsARun = 64;
  struct alignas(64) Stripe {
    Mutex mutex;
  };
  Mutex& stripe(size_t word) { return stripes_[word / kWordsARun % kStripes].mutex; }

  const Entry* find(uint64_t number) const;
  Entry* find(uint64_t number);
  Entry& make(uint64_t number);
  bool in_any_checkpoint(Slot slot) const;

  const uint64_t slots_;
  RowBits live_;
  std::array<Entry, kMostCheckpoints> entries_;
  std::array<Stripe, kStripes> stripes_;
};

}  // namespace embstore::log
