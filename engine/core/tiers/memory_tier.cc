#include "memory_tier.h"

#include <utility>

namespace embstore {

MemoryTier::MemoryTier(std::string name, const RowLayout& layout, uint64_t capacity_rows,
                       std::unique_ptr<Memory> memory)
    : name_(std::move(name)),
      layout_(layout),
      capacity_rows_(capacity_rows),
      memory_(std::move(memory)),
      rows_(reinterpret_cast<float*>(memory_->data())),
      row_floats_(layout.row_floats()),
      meta_(capacity_rows),
      unreserved_rows_(capacity_rows) {}

bool MemoryTier::reserve(uint64_t count) {
  uint64_t unreserved = unreserved_rows_.load(std::memory_order_relaxed);
  do {
    if (unreserved < count) return false;
  } while (!unreserved_rows_.compare_exchange_weak(unreserved, unreserved - count,
                                                   std::memory_order_relaxed));
  return true;
}

void MemoryTier::release(uint64_t count) {
  unreserved_rows_.fetch_add(count, std::memory_order_relaxed);
}

void MemoryTier::take(std::span<Slot> slots) {
  const std::lock_guard lock(mutex_);
  for (Slot& slot : slots) {
    if (free_slots_.empty()) {
      slot = static_cast<Slot>(untouched_from_++);
    } else {
      slot = free_slots_.back();
      free_slots_.pop_back();
    }
  }
}

void MemoryTier::give_back(std::span<const Slot> slots) {
  {
    const std::lock_guard lock(mutex_);
    free_slots_.insert(free_slots_.end(), slots.begin(), slots.end());
  }
  // Only now: a reservation is a promise that take() finds a slot.
  release(slots.size());
}

TierStats MemoryTier::stats() const {
  const std::lock_guard lock(mutex_);
  return TierStats{
      .name = name_,
      .rows = untouched_from_ - free_slots_.size(),
      .capacity_rows = capacity_rows_,
      .row_bytes = layout_.row_bytes(),
      .address = reinterpret_cast<uintptr_t>(memory_->data()),
      .mapped_bytes = memory_->size_bytes(),
      .path = memory_->path(),
      .is_pmem = memory_->is_pmem(),
  };
}

}  // namespace embstore
