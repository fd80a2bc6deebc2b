// Rows in addressable memory: DRAM, a libpmem mapping, or memkind's nodes. As a table's first tier its rows
// are read and updated in place.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "platform/prefetch.h"
#include "row/ranking.h"
#include "row/row_layout.h"
#include "tiers/tier.h"

namespace embstore {

class MemoryTier final : public Tier {
 public:
  // `memory` holds slot_count rows of `layout`. Only a ranked tier keeps what rows are ranked by.
  MemoryTier(std::string name, const RowLayout& layout, uint64_t slot_count, std::unique_ptr<Memory> memory,
             bool ranked);

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  void read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                 std::vector<DamagedRow>& damaged) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;

  uint64_t slot_count() const { return slot_count_; }

  // Throws Error(kStoreFull) and takes none where there are fewer free slots. Slots that were taken hold
  // unspecified rows and aren't among the coldest until put() or touch().
  void take(std::span<Slot> slots);
  void give_back(std::span<const Slot> slots);

  // Fills a slot that was taken.
  void put(Slot slot, const RowHeader& header, const float* row);
  // The same for a new row whose floats the caller has written.
  void start(Slot slot, int64_t key, uint64_t frequency) {
    meta_[slot] = RowMeta::of(frequency, /*version=*/-1, /*save_span=*/0);
    if (ranked_) fill_rank(slot, key, frequency, /*served=*/0, AccessClock::kFirstStamp);
  }

  // The hot path's view of a slot. Who may touch it is the index's business (see store/index/).
  float* row(Slot slot) const { return rows_ + slot * row_floats_; }
  RowMeta& meta(Slot slot) const { return meta_[slot]; }
  bool ranked() const { return ranked_; }

  // --- Ranking. REQUIRES: ranked().
  // An update at `stamp` that brought the row's frequency to what it is.
  void count_update(Slot slot, uint64_t frequency, uint64_t stamp) {
    ranks_[slot].frequency.store(frequency, std::memory_order_relaxed);
    touch(slot, stamp);
  }
  // Accesses in serving look-ups, the last of them at `stamp`. REQUIRES: the mover's mutex is held.
  void count_served(Slot slot, uint64_t count, uint64_t stamp) {
    std::atomic<uint64_t>& served = ranks_[slot].served;
    served.store(served.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
    touch(slot, stamp);
  }
  struct Candidate {
    Rank rank;
    Slot slot;
  };
  // Sets `rows` to those that rank lowest, about `count` of them, in any order; no row of the rest ranks
  // lower than the limit that is returned. Rows that are accessed meanwhile may be ranked by what they were
  // before.
  Rank coldest(uint64_t count, CacheStrategy strategy, std::vector<Candidate>& rows) const;
  Rank rank(Slot slot, CacheStrategy strategy) const {
    const SlotRank& row = ranks_[slot];
    return Rank::of(
        strategy, row.frequency.load(std::memory_order_relaxed) + row.served.load(std::memory_order_relaxed),
        row.stamp.load(std::memory_order_relaxed));
  }
  // All of a slot.
  void prefetch(Slot slot) const { prefetch(slot, row_floats_); }
  void prefetch(Slot slot, size_t floats) const {
    prefetch_row(row(slot), floats);
    prefetch_line(&meta_[slot]);
    if (ranked_) prefetch_rank(slot);
  }
  void prefetch_rank(Slot slot) const { prefetch_line(&ranks_[slot]); }
  bool is_filled(Slot slot) const { return ranks_[slot].stamp.load(std::memory_order_acquire) != 0; }
  // Of the row that fills the slot, or filled it last.
  int64_t key(Slot slot) const { return ranks_[slot].key.load(std::memory_order_relaxed); }

  // From now on slots that are taken are noted, until they are asked for. REQUIRES: none was taken yet.
  void note_arrivals();
  // Adds the slots that were taken since the last call.
  void take_arrivals(std::vector<Slot>& slots);
  RowHeader header(Slot slot, int64_t key) const;

 private:
  // A rank that about `count` of the rows in the first `slots` slots don't exceed.
  Rank sampled_limit(uint64_t slots, uint64_t count, CacheStrategy strategy) const;
  void touch(Slot slot, uint64_t stamp) {
    std::atomic<uint64_t>& last = ranks_[slot].stamp;
    if (last.load(std::memory_order_relaxed) < stamp) last.store(stamp, std::memory_order_relaxed);
  }
  void fill_rank(Slot slot, int64_t key, uint64_t frequency, uint64_t served, uint64_t stamp) {
    SlotRank& rank = ranks_[slot];
    rank.key.store(key, std::memory_order_relaxed);
    rank.frequency.store(frequency, std::memory_order_relaxed);
    rank.served.store(served, std::memory_order_relaxed);
    rank.stamp.store(stamp, std::memory_order_release);  // last: only now is the slot filled
  }

  const std::string name_;
  const RowLayout layout_;
  const uint64_t slot_count_;
  const bool ranked_;
  const std::unique_ptr<Memory> memory_;
  float* const rows_;
  const size_t row_floats_;
  // In DRAM for every kind of memory, and backed only where they are touched.
  const PageArray<RowMeta> meta_;
  const PageArray<SlotRank> ranks_;  // one element where the tier isn't ranked

  mutable std::mutex mutex_;
  std::vector<Slot> free_slots_;  // guarded by mutex_
  uint64_t untouched_from_ = 0;   // guarded by mutex_; slots from here on were never taken
  std::atomic<uint64_t> reused_places_{0};
  std::vector<Slot> arrivals_;  // guarded by mutex_; each slot once
  std::vector<bool> arrived_;   // guarded by mutex_; by slot; empty: arrivals aren't noted
};

}  // namespace embstore
