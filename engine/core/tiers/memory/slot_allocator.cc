#include "tiers/memory/slot_allocator.h"

namespace embstore {

SlotAllocator::SlotAllocator(uint64_t slots, uint64_t max_slots, uint64_t max_arrivals)
    : first_slots_(slots),
      max_slots_(max_slots),
      slots_(slots),
      free_slots_(static_cast<int64_t>(slots)),
      free_list_(max_slots, PageSize::kSmall),
      arrivals_(max_slots, max_arrivals) {}

uint64_t SlotAllocator::taken_slots() const {
  MutexLock lock(mutex_);
  return ever_taken_ - returned_ + added_ever_taken_ - added_returned_;
}

bool SlotAllocator::try_claim(uint64_t count, uint64_t leave) {
  int64_t free = free_slots_.load(std::memory_order_relaxed);
  do {
    if (free < static_cast<int64_t>(count + leave)) return false;
  } while (!free_slots_.compare_exchange_weak(free, free - static_cast<int64_t>(count)));
  return true;
}

void SlotAllocator::add_slots(uint64_t count) {
  slots_.fetch_add(count, std::memory_order_relaxed);
  free_slots_.fetch_add(static_cast<int64_t>(count));
}

void SlotAllocator::take_existing(std::span<const uint64_t> taken) {
  MutexLock lock(mutex_);
  const auto is_taken = [&](uint64_t slot) {
    return slot / 64 < taken.size() && (taken[slot / 64] >> (slot % 64) & 1) != 0;
  };
  ever_taken_ = std::min<uint64_t>(first_slots_, taken.size() * 64);
  while (ever_taken_ != 0 && !is_taken(ever_taken_ - 1)) --ever_taken_;
  for (uint64_t slot = ever_taken_; slot-- > 0;) {
    if (!is_taken(slot)) free_list_[returned_++] = static_cast<Slot>(slot);
  }
  free_slots_.fetch_sub(static_cast<int64_t>(ever_taken_ - returned_));
}

void SlotAllocator::take(std::span<Slot> slots) {
  MutexLock lock(mutex_);
  for (Slot& slot : slots) {
    bool reused = true;
    if (returned_ != 0) {
      slot = free_list_[--returned_];
    } else if (ever_taken_ != first_slots_) {
      slot = static_cast<Slot>(ever_taken_++);
      reused = false;
    } else if (added_returned_ != 0) {
      slot = free_list_[max_slots_ - added_returned_--];
    } else {
      slot = static_cast<Slot>(first_slots_ + added_ever_taken_++);
      reused = added_ever_taken_ <= added_high_water_;
      if (!reused) added_high_water_ = added_ever_taken_;
    }
    if (reused) {
      reused_slots_.store(reused_slots_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    arrivals_.note(slot);
  }
}

void SlotAllocator::put_back(Slot slot) {
  if (slot < first_slots_) {
    free_list_[returned_++] = slot;
  } else {
    free_list_[max_slots_ - ++added_returned_] = slot;
  }
}

void SlotAllocator::untake(std::span<const Slot> slots) {
  MutexLock lock(mutex_);
  for (const Slot slot : slots) put_back(slot);
}

void SlotAllocator::give_back(std::span<const Slot> slots) {
  untake(slots);
  free_slots_.fetch_add(static_cast<int64_t>(slots.size()));
}

void SlotAllocator::give_back(std::span<const Place> places) {
  {
    MutexLock lock(mutex_);
    for (const Place& place : places) put_back(place.slot);
  }
  free_slots_.fetch_add(static_cast<int64_t>(places.size()));
}

uint64_t SlotAllocator::first_never_taken() const {
  MutexLock lock(mutex_);
  return added_ever_taken_ != 0 ? first_slots_ + added_ever_taken_ : ever_taken_;
}

bool SlotAllocator::take_arrivals(std::vector<Slot>& slots) {
  MutexLock lock(mutex_);
  return arrivals_.take(slots);
}

}  // namespace embstore
