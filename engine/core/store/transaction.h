// A batch of changes of where rows are: rows that come, move and leave.
//
// Everything that may fail comes before the first change: room is reserved, slots are claimed, copies are written.
// A change itself can't fail. The end of a transaction, however it comes, brings the ledgers in order: what nothing
// refers to any more is erased in its tier, what was reserved and not used is given back, and tiers' counts
// say what is there.
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
  // So many rows that move or leave are erased together in the end; more of them, one by one. New rows get their places in a
  // pool from `places`; null: from the pool.
  Transaction(RowStore& store, size_t most_departures, PoolClaim* places = nullptr);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  // Room for `count` more rows in the table, which come to tier t; false, and nothing is reserved, where so much isn't
  // left. Throws Error(kStorage) where a pool holds rows of an earlier process that nobody has said what to do with.
  bool try_reserve_rows(uint64_t count, size_t t = 0);
  // For rows that have their places in the tiers already.
  bool try_reserve_placed_rows(uint64_t count);

  // --- Changes, which readers see at once. REQUIRES, of `to`: a whole row lies there, and nothing refers to it.
  // A new row, for which room was reserved, here and in the index.
  IndexEntry insert(IndexShard& shard, int64_t key, RowRef to, IndexShard::Room& room) REQUIRES(shard.mutex);
  // The row is at `to` from now on. REQUIRES: where it comes to a cache above a pool, InclusiveCache::try_claim().
  void move(IndexShard& shard, const IndexEntry& entry, int64_t key, RowRef to) REQUIRES(shard.mutex);
  void remove(IndexShard& shard, const IndexEntry& entry, int64_t key) REQUIRES(shard.mutex);

  uint64_t moved_rows() const { return moved_; }

 private:
  struct Departure {
    uint32_t tier;
    Place place;
  };
  // REQUIRES: the index doesn't refer to the row there any more.
  void depart(int64_t key, RowRef from);

  RowStore& store_;
  std::vector<Departure> departures_;
  std::array<uint64_t, RowRef::kMaxTiers> arrivals_{};
  uint64_t reserved_ = 0;
  PoolClaim pool_claim_;  // as many as are reserved and not in the pool yet
  uint64_t removed_ = 0;
  uint64_t moved_ = 0;
};

// Copies of rows in a tier, which nothing refers to yet. Those that nothing has come to refer to are erased in the
// end.
class RowCopies {
 public:
  // Throws what the tier throws, and then nothing was written.
  RowCopies(RowStore& store, size_t t, const RowBatch& rows);
  ~RowCopies();
  RowCopies(const RowCopies&) = delete;
  RowCopies& operator=(const RowCopies&) = delete;

  // Where copy i is, which something refers to from now on.
  RowRef place(size_t i) {
    is_placed_[i] = true;
    return RowRef(tier_, slots_[i]);
  }

 private:
  RowStore& store_;
  const uint32_t tier_;
  std::vector<Place> unplaced_;  // of all copies, for the end
  std::vector<Slot> slots_;
  std::vector<bool> is_placed_;
};

// Slots of a tier of memory, claimed and taken. Those that nothing was put into go back to their claim in the end.
class MemoryTierSlots {
 public:
  // REQUIRES: claim.count() >= count.
  MemoryTierSlots(SlotClaim& claim, size_t count);
  ~MemoryTierSlots();
  MemoryTierSlots(const MemoryTierSlots&) = delete;
  MemoryTierSlots& operator=(const MemoryTierSlots&) = delete;

  size_t left() const { return slots_.size() - used_; }
  Slot next() { return slots_[used_++]; }
  // The one that is `ahead` after the next, to be fetched; the last where there are fewer. REQUIRES: any.
  Slot peek(size_t ahead) const { return slots_[std::min(used_ + ahead, slots_.size() - 1)]; }

 private:
  SlotClaim& claim_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace embstore
