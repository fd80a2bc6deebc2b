// Rows in addressable memory: DRAM, a libpmem mapping, or memkind's nodes.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "row_layout.h"
#include "tier.h"

namespace embstore {

class MemoryTier final : public Tier {
 public:
  // `memory` holds capacity_rows rows of `layout`.
  MemoryTier(std::string name, const RowLayout& layout, uint64_t capacity_rows,
             std::unique_ptr<Memory> memory);

  bool reserve(uint64_t count) override;
  void release(uint64_t count) override;
  void take(std::span<Slot> slots) override;
  void give_back(std::span<const Slot> slots) override;
  TierStats stats() const override;

  // The hot path's view of a slot. Who may touch it is the index's business (see index/bucket.h).
  float* row(Slot slot) const { return rows_ + slot * row_floats_; }
  RowMeta& meta(Slot slot) const { return meta_[slot]; }

 private:
  const std::string name_;
  const RowLayout layout_;
  const uint64_t capacity_rows_;
  const std::unique_ptr<Memory> memory_;
  float* const rows_;
  const size_t row_floats_;
  const PageArray<RowMeta> meta_;  // in DRAM for every kind of memory

  std::atomic<uint64_t> unreserved_rows_;

  mutable std::mutex mutex_;
  std::vector<Slot> free_slots_;  // guarded by mutex_
  uint64_t untouched_from_ = 0;   // guarded by mutex_; slots from here on were never taken
};

}  // namespace embstore
