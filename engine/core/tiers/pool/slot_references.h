// What refers to each slot of a pool: something that is live, and checkpoints. A slot that nothing refers to any more is
// told of once, to whoever took the last reference away, and is free then.
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
#include "tiers/pool/format.h"
#include "tiers/pool/slot_bits.h"

namespace embstore::pool {

// Checkpoints are told apart by the entry that they have in the table on the medium.
class SlotReferences {
 public:
  explicit SlotReferences(uint64_t slots) : slots_(slots), live_(slots) {}

  // --- What is live. REQUIRES, of add_live: nothing refers to the slot.
  void add_live(Slot slot) { live_.add(slot); }
  // True: nothing refers to the slot any more.
  bool remove_live(Slot slot);
  uint64_t live_slots() const { return live_.count(); }

  // --- Checkpoints. REQUIRES, of the first four: no other call is under way.
  // All that is live belongs to it, and it's pending. Throws std::bad_alloc or Error(kStorage); nothing has changed then.
  void begin(size_t entry, uint64_t number);
  // One that is kept, from an earlier process.
  void load(size_t entry, std::span<const uint64_t> words);
  // What belongs to it is live, and nothing else.
  void make_live(size_t entry) { live_.copy_from(*bits_[entry]); }
  std::vector<uint64_t> taken() const;  // words of all that something refers to

  // To each pending one from `first_number` on. True: nothing refers to the slot, for there's none.
  bool add_to_pending(uint64_t first_number, Slot slot);
  // It's pending no more, and its bits don't change until it's dropped.
  void settle(size_t entry) { pending_[entry].store(0, std::memory_order_relaxed); }
  const SlotBits& bits(size_t entry) const { return *bits_[entry]; }
  // Takes its references away, and tells of slots that nothing refers to any more, the highest first.
  using Freed = std::function<void(std::span<const Slot> slots)>;
  void drop(size_t entry, const Freed& freed);

 private:
  // Slots that lie together share a lock. It's held by those who take references away: of two at once, one must see
  // that it was the last.
  static constexpr size_t kStripes = 64;
  static constexpr size_t kWordsARun = 64;
  struct alignas(64) Stripe {
    Mutex mutex;
  };
  Mutex& stripe(size_t word) { return stripes_[word / kWordsARun % kStripes].mutex; }

  SlotBits& allocate(size_t entry);
  bool in_any_checkpoint(Slot slot) const;

  const uint64_t slots_;
  SlotBits live_;
  std::array<std::unique_ptr<SlotBits>, kEntries> bits_;   // empty of a checkpoint that isn't there
  std::array<std::atomic<uint64_t>, kEntries> pending_{};  // its number; 0 where it isn't pending
  // The bits that were ever needed; they stay.
  std::array<SlotBits*, kEntries> allocated_{};
  size_t allocated_count_ = 0;
  std::array<Stripe, kStripes> stripes_;
};

}  // namespace embstore::pool
