// A tier of rows in addressable memory: DRAM, a libpmem mapping, or memkind's nodes. If it's a table's first
// tier, its rows are read and updated in place.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "access/access.h"
#include "access/phase.h"
#include "gpu/buffers.h"
#include "memory/memory.h"
#include "memory/room.h"
#include "row/row_layout.h"
#include "tiers/memory/ranked_tier.h"
#include "tiers/memory/row_array.h"
#include "tiers/memory/slot_allocator.h"
#include "tiers/memory/slot_ranks.h"
#include "tiers/tier.h"

namespace embstore {

// The position of a memory tier among a table's tiers, which says what it must keep in DRAM for each row.
enum class MemoryRole {
  kOnly,    // rows don't move: keeps nothing in DRAM
  kFirst,   // rows are accessed, pinned and ranked
  kMiddle,  // rows come from above and are ranked
  kLast,    // rows come from above: keeps nothing in DRAM
};

class MemoryTier final : public Tier, public RankedTier {
 public:
  // Returns how many bytes of memory a tier with `slots` slots needs.
  static size_t bytes_for(const RowLayout& layout, MemoryRole role, uint64_t slots);
  // Returns how many bytes a first tier needs for each slot that it may get later, with what is kept beside
  // the row.
  static size_t bytes_per_added_slot(const RowLayout& layout);
  // `memory` has bytes_for() of `slots`; in a first tier it may grow to that of `max_slots`.
  MemoryTier(std::string name, const RowLayout& layout, MemoryRole role, uint64_t slots, uint64_t max_slots,
             std::unique_ptr<Memory> memory);

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t free_places() const override { return slots_.free_slots(); }
  uint64_t reused_places() const override { return slots_.reused_slots(); }
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;
  void prefetch_rank(Slot slot) const override {
    rows_.prefetch_side_data(slot);
    if (ranks_ != nullptr) ranks_->prefetch(slot);
  }
  bool try_set_rank(Slot slot, const RowHeader& header) override;
  bool can_set_ranks() const override { return role_ == MemoryRole::kMiddle || role_ == MemoryRole::kLast; }

  // --- RankedTier. REQUIRES: is_ranked().
  SlotRanks& ranks() const override { return *ranks_; }  // slot_ranks.h says which locks guard them
  uint64_t slot_count() const override { return slots_.slots(); }
  uint64_t max_slots() const override { return slots_.max_slots(); }
  uint64_t first_never_taken() const override { return slots_.first_never_taken(); }
  int64_t key(Slot slot) const override {
    return role_ == MemoryRole::kFirst ? ranks_->key(slot) : rows_.key(slot);
  }
  bool keys_are_with_ranks() const override { return role_ == MemoryRole::kFirst; }
  bool take_arrivals(std::vector<Slot>& slots) override { return slots_.take_arrivals(slots); }
  bool is_first() const override { return role_ == MemoryRole::kFirst; }

  bool is_ranked() const { return role_ == MemoryRole::kFirst || role_ == MemoryRole::kMiddle; }
  SlotAllocator& slots() { return slots_; }
  const SlotAllocator& slots() const { return slots_; }
  // The rows, for the hot path; the caller counts the accesses.
  RowArray& rows() { return rows_; }
  const RowArray& rows() const { return rows_; }

  // Lets a GPU read rows in place from now on, unless the system refuses or has too little memory to spare:
  // pinning takes all of the tier's memory. REQUIRES: not a first tier; memory of this process alone.
  void pin_rows(const std::shared_ptr<gpu::Device>& device);
  bool has_pinned_rows() const { return pinned_ && pinned_->address(); }
  // Returns the row's address on the device. REQUIRES: has_pinned_rows().
  gpu::DeviceAddress row_on_device(Slot slot) const {
    return pinned_->address() + slot * layout_.row_bytes();
  }

  // Adds slots to those that the tier was made with. Throws Error(kStorage) if there is no memory for them,
  // and Error(kStoreFull) beyond max_slots. The caller serialises calls. REQUIRES: a first tier.
  void add_slots(uint64_t count);
  // Removes the added slots and frees their memory, if all of them are free.
  void remove_added_slots();

  // Fills a taken slot.
  void put(Slot slot, const RowHeader& header, const float* floats);
  // Fills a taken slot with a new row: see RowArray::start().
  void start(Slot slot, int64_t key, const float* weights, const float* slot_values, uint64_t frequency);
  // Gives back taken slots, filled or not. REQUIRES: nothing refers to them.
  void give_back(std::span<const Slot> slots);
  RowHeader header(Slot slot, int64_t key) const;
  // Counts an update of the row by a batch in which its key occurs `occurrences` times. Returns the number of
  // all accesses to the row. REQUIRES: the mutex of its shard is held; the table has other tiers.
  uint64_t count_update(Slot slot, int64_t key, uint64_t occurrences, int64_t step, uint16_t save_span,
                        uint64_t stamp);
  // Counts an access to a whole row, with what lies beside it in the same memory. `phase` is at this tier's
  // meter.
  void count_row(Phase& phase, Access access, Slot slot) const {
    count_row(phase, access, slot, layout_.row_bytes());
  }
  // Counts only the first `bytes` bytes of its floats.
  void count_row(Phase& phase, Access access, Slot slot, size_t bytes) const {
    count_rows(phase, access, 1, bytes, [slot](size_t) { return slot; });
  }
  // Counts only what lies beside the row.
  void count_header(Phase& phase, Access access, Slot slot) const;
  // Counts accesses to several rows; slot_of(i) is the slot of row i.
  template <class SlotOf>
  void count_rows(Phase& phase, Access access, size_t rows, size_t bytes, SlotOf slot_of) const {
    phase.count_at(meter(), access, rows, bytes);
    if (rows_.side_bytes() != 0) phase.count_at(meter(), access, rows, rows_.side_bytes());
    if (phase.wants_addresses()) [[unlikely]]
      touch_rows(phase, access, rows, bytes, slot_of);
  }
  // Reports the addresses of rows that are counted elsewhere. Call it only if phase.wants_addresses().
  template <class SlotOf>
  void touch_rows(Phase& phase, Access access, size_t rows, size_t bytes, SlotOf slot_of) const {
    for (size_t i = 0; i < rows; ++i) touch(phase, access, slot_of(i), bytes);
  }
  void count_rows(Phase& phase, Access access, size_t rows) const {
    phase.count_at(meter(), access, rows, layout_.row_bytes());
    if (rows_.side_bytes() != 0) phase.count_at(meter(), access, rows, rows_.side_bytes());
  }
  void prefetch(Slot slot) const {
    rows_.prefetch(slot);
    if (ranks_ != nullptr) ranks_->prefetch(slot);
  }

 private:
  void touch(Phase& phase, Access access, Slot slot, size_t bytes) const;

  const std::string name_;
  const RowLayout layout_;
  const MemoryRole role_;
  RowArray rows_;
  SlotAllocator slots_;
  const std::unique_ptr<SlotRanks> ranks_;  // null if rows aren't ranked
  bool is_below_gpu_ = false;
  std::optional<gpu::PinnedRange> pinned_;
  MemoryReservation reservation_;  // if rows may be pinned
};

}  // namespace embstore
