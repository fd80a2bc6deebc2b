// A batch of changes to where rows are: rows are inserted, moved and removed.
//
// All that may fail comes before the first change: room is reserved, slots are claimed, copies are written. A
// change itself can't fail. The destructor, which also runs after an exception, settles the accounts: it
// erases places in their tiers to which nothing refers any more, gives back what was reserved but not used,
// and updates the tiers' counts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "row/place.h"
#include "store/row_store.h"

namespace embstore {

class Transaction {
 public:
  // Up to max_departures places that rows leave are erased together at the end; further ones, one at a time.
  // New rows take their places in a pool from `places`, or from the pool if that is null.
  Transaction(RowStore& store, size_t max_departures, PoolClaim* places = nullptr);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  // Reserves room for `count` more rows in the table, which come to tier t. Returns false, and reserves
  // nothing, if less is left. Throws Error(kStorage) if a pool holds rows of an earlier process that were
  // neither restored nor dropped.
  bool try_reserve_rows(uint64_t count, size_t t = 0);
  // For rows that already have their places in the tiers.
  bool try_reserve_placed_rows(uint64_t count);

  // --- Changes, which readers see at once. REQUIRES for `to`: a whole row lies there, and nothing refers to
  // it. Inserts a new row, for which room was reserved here and in the index.
  IndexEntry insert(IndexShard& shard, int64_t key, RowRef to, IndexShard::Room& room) REQUIRES(shard.mutex);
  // Moves a row to `to`. REQUIRES: InclusiveCache::try_claim() succeeded if the row comes to a cache above a
  // pool.
  void move(IndexShard& shard, const IndexEntry& entry, int64_t key, RowRef to) REQUIRES(shard.mutex);
  void remove(IndexShard& shard, const IndexEntry& entry, int64_t key) REQUIRES(shard.mutex);

  uint64_t moved_rows() const { return moved_; }

 private:
  struct Departure {
    uint32_t tier;
    Place place;
  };
  // REQUIRES: the index no longer refers to the row there.
  void depart(int64_t key, RowRef from);

  RowStore& store_;
  std::vector<Departure> departures_;
  std::array<uint64_t, RowRef::kMaxTiers> arrivals_{};
  uint64_t reserved_ = 0;
  PoolClaim pool_claim_;  // for reserved rows that aren't inserted yet
  uint64_t removed_ = 0;
  uint64_t moved_ = 0;
};

// Copies of rows in a tier, to which nothing refers yet. The destructor erases copies to which nothing refers
// by then.
class RowCopies {
 public:
  // Writes the copies. Throws what the tier throws, and then nothing was written.
  RowCopies(RowStore& store, size_t t, const RowBatch& rows);
  ~RowCopies();
  RowCopies(const RowCopies&) = delete;
  RowCopies& operator=(const RowCopies&) = delete;

  // Returns the place of copy i, to which the caller makes something refer.
  RowRef place(size_t i) {
    is_placed_[i] = true;
    return RowRef(tier_, slots_[i]);
  }

 private:
  RowStore& store_;
  const uint32_t tier_;
  std::vector<Place> unplaced_;  // all copies; at the end, those to erase
  std::vector<Slot> slots_;
  std::vector<bool> is_placed_;
};

// Slots of a memory tier, claimed and taken. Unused ones go back to their claim at the end.
class MemoryTierSlots {
 public:
  // REQUIRES: claim.count() >= count.
  MemoryTierSlots(SlotClaim& claim, size_t count);
  ~MemoryTierSlots();
  MemoryTierSlots(const MemoryTierSlots&) = delete;
  MemoryTierSlots& operator=(const MemoryTierSlots&) = delete;

  size_t left() const { return slots_.size() - used_; }
  Slot next() { return slots_[used_++]; }
  // The slot that is `ahead` places after the next, for prefetching; the last one if there are fewer.
  // REQUIRES: there is a slot.
  Slot peek(size_t ahead) const { return slots_[std::min(used_ + ahead, slots_.size() - 1)]; }

 private:
  SlotClaim& claim_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace embstore
