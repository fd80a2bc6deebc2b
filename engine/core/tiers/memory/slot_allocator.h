// Allocates the slots of a memory tier.
//
// A caller first claims a number of slots, which may fail or wait. Taking claimed slots and giving slots back
// can't fail.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/huge_pages.h"
#include "row/place.h"
#include "threads/mutex.h"
#include "tiers/memory/slot_arrivals.h"

namespace embstore {

class SlotAllocator {
 public:
  // Starts with `slots` slots, and can grow to `max_slots`. Notes up to `max_arrivals` taken slots for
  // take_arrivals().
  SlotAllocator(uint64_t slots, uint64_t max_slots, uint64_t max_arrivals);

  static constexpr size_t kBytesPerSlot = 2 * sizeof(Slot) + 1;  // free_list_, arrivals_

  uint64_t slots() const { return slots_.load(std::memory_order_relaxed); }
  uint64_t max_slots() const { return max_slots_; }
  uint64_t taken_slots() const;

  // Returns how many slots are neither taken nor claimed.
  uint64_t free_slots() const {
    return static_cast<uint64_t>(std::max(free_slots_.load(std::memory_order_relaxed), int64_t{0}));
  }
  // Claims the right to take `count` slots. Returns false, and claims nothing, if that would leave fewer than
  // `leave` free.
  bool try_claim(uint64_t count, uint64_t leave = 0);
  void give_claim_back(uint64_t count) { free_slots_.fetch_add(static_cast<int64_t>(count)); }
  // Adds `count` free slots, for which there is memory already.
  void add_slots(uint64_t count);

  // Removes the added slots if none of them is taken and no claim needs them: calls give_back(begin, end)
  // with the range of those that were ever taken, before any is taken again.
  template <class GiveBack>
  void remove_added(GiveBack give_back) {
    MutexLock lock(mutex_);
    const uint64_t added = slots() - first_slots_;
    if (added == 0 || added_ever_taken_ != added_returned_ || !try_claim(added)) return;
    slots_.store(first_slots_, std::memory_order_relaxed);
    if (added_ever_taken_ != 0) give_back(first_slots_, first_slots_ + added_ever_taken_);
    added_ever_taken_ = 0;
    added_returned_ = 0;
  }
  uint64_t first_slots() const { return first_slots_; }  // the number at construction

  // Takes the slots whose bits are set (slot s is bit s mod 64 of word s / 64); the others will be taken in
  // ascending order. REQUIRES: nothing was claimed or taken yet.
  void take_existing(std::span<const uint64_t> taken);
  // REQUIRES: slots.size() slots were claimed. Added slots are taken last.
  void take(std::span<Slot> slots);
  void give_back(std::span<const Slot> slots);
  void give_back(std::span<const Place> places);
  // Gives back slots that stay claimed: they can be taken again without another claim.
  void untake(std::span<const Slot> slots);

  // Returns a number that changes before a slot is taken a second time.
  uint64_t reused_slots() const { return reused_slots_.load(std::memory_order_acquire); }
  // Returns the first slot that was never taken.
  uint64_t first_never_taken() const;
  // Appends to `slots` those that were taken since the last call, each once. Returns false if there were too
  // many to note.
  bool take_arrivals(std::vector<Slot>& slots);

 private:
  void put_back(Slot slot) REQUIRES(mutex_);

  const uint64_t first_slots_;
  const uint64_t max_slots_;
  std::atomic<uint64_t> slots_;
  std::atomic<int64_t> free_slots_;  // claimed slots aren't counted
  std::atomic<uint64_t> reused_slots_{0};

  mutable Mutex mutex_;
  // For the first slots and for the added ones: how many were ever taken, and how many of these are free
  // again.
  uint64_t ever_taken_ GUARDED_BY(mutex_) = 0;
  uint64_t returned_ GUARDED_BY(mutex_) = 0;
  uint64_t added_ever_taken_ GUARDED_BY(mutex_) = 0;
  uint64_t added_returned_ GUARDED_BY(mutex_) = 0;
  uint64_t added_high_water_ GUARDED_BY(mutex_) = 0;
  // Two stacks of free slots, the first slots' from the front and the added ones' from the back. Their memory
  // is allocated in advance: neither taking nor giving back may fail.
  const PageArray<Slot> free_list_;
  SlotArrivals arrivals_ GUARDED_BY(mutex_);
};

// Slots that were claimed and not taken yet; the destructor gives them back.
class SlotClaim {
 public:
  // REQUIRES: `count` slots of `slots` were claimed.
  SlotClaim(SlotAllocator& slots, uint64_t count) : slots_(&slots), count_(count) {}
  SlotClaim(SlotClaim&& other) noexcept : slots_(other.slots_), count_(other.count_) { other.count_ = 0; }
  SlotClaim& operator=(SlotClaim&& other) noexcept {
    if (this != &other) {
      slots_->give_claim_back(count_);
      slots_ = other.slots_;
      count_ = other.count_;
      other.count_ = 0;
    }
    return *this;
  }
  ~SlotClaim() { slots_->give_claim_back(count_); }

  uint64_t count() const { return count_; }
  // Splits `count` off this claim. REQUIRES: there are as many.
  SlotClaim split(uint64_t count) {
    count_ -= count;
    return SlotClaim(*slots_, count);
  }
  // REQUIRES: slots.size() <= count().
  void take(std::span<Slot> slots) {
    slots_->take(slots);
    count_ -= slots.size();
  }
  // Gives back taken slots that weren't needed, to this claim.
  void untake(std::span<const Slot> slots) {
    slots_->untake(slots);
    count_ += slots.size();
  }

 private:
  SlotAllocator* slots_;
  uint64_t count_;
};

}  // namespace embstore
