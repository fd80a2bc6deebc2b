#include "tiers/memory/slot_allocator.h"

namespace embstore {

SlotAllocator::SlotAllocator(uint64_t slots, uint64_t most_slots, bool notes_arrivals)
    : most_slots_(most_slots),
      notes_arrivals_(notes_arrivals),
      slots_(slots),
      free_slots_(static_cast<int64_t>(slots)),
      free_list_(most_slots),
      arrivals_(notes_arrivals ? most_slots : 1),
      is_arrival_(notes_arrivals ? most_slots : 1) {}

uint64_t SlotAllocator::taken_slots() const {
  MutexLock lock(mutex_);
  return untouched_from_ - given_back_;
}

bool SlotAllocator::try_claim(uint64_t count) {
  int64_t free = free_slots_.load(std::memory_order_relaxed);
  do {
    if (free < static_cast<int64_t>(count)) return false;
  } while (!free_slots_.compare_exchange_weak(free, free - static_cast<int64_t>(count)));
  return true;
}

void SlotAllocator::add_slots(uint64_t count) {
  slots_.fetch_add(count, std::memory_order_relaxed);
  free_slots_.fetch_add(static_cast<int64_t>(count));
}

void SlotAllocator::take(std::span<Slot> slots) {
  MutexLock lock(mutex_);
  for (Slot& slot : slots) {
    if (given_back_ == 0) {
      slot = static_cast<Slot>(untouched_from_++);
    } else {
      slot = free_list_[--given_back_];
      reused_slots_.store(reused_slots_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    if (!notes_arrivals_ || is_arrival_.contains(slot)) continue;
    is_arrival_.add(slot);
    arrivals_[arrived_++] = slot;
  }
}

void SlotAllocator::untake(std::span<const Slot> slots) {
  MutexLock lock(mutex_);
  for (const Slot slot : slots) free_list_[given_back_++] = slot;
}

void SlotAllocator::give_back(std::span<const Slot> slots) {
  untake(slots);
  free_slots_.fetch_add(static_cast<int64_t>(slots.size()));
}

uint64_t SlotAllocator::untouched_from() const {
  MutexLock lock(mutex_);
  return untouched_from_;
}

void SlotAllocator::take_arrivals(std::vector<Slot>& slots) {
  MutexLock lock(mutex_);
  for (uint64_t i = 0; i < arrived_; ++i) is_arrival_.remove(arrivals_[i]);
  slots.insert(slots.end(), arrivals_.data(), arrivals_.data() + arrived_);
  arrived_ = 0;
}

}  // namespace embstore
