// Moves the rows of one table between its tiers, on the process's eviction threads and, when they fall
// behind, on the thread that needs room.
//
// The rule that everything here keeps: when nothing moves any more, the first tier holds the rows that rank
// highest, as many as fit, the second the next, and so on. A row enters the first tier when it is
// accessed, and a tier over its capacity gives up the coldest of its rows; since ranks only grow by access,
// the outcome doesn't depend on when that is done.
//
// How a row moves: it is copied without locks, written to the tier below, and then, under its shard's mutex
// and if it didn't change meanwhile, the index is made to refer to the copy. So a row is never lost or
// doubled: exactly one place is referred to at any time.
//
// Locks. move_mutex_ is held for a whole round of moves, and shard mutexes are taken under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "movement/access_log.h"
#include "movement/coldest_rows.h"
#include "movement/eviction_pool.h"
#include "movement/staged_rows.h"
#include "row/ranking.h"
#include "store/index/index_reader.h"
#include "store/tier_stack.h"
#include "threads/epochs.h"

namespace embstore {

class Mover final : private EvictionPool::Job, private Relocator {
 public:
  Mover(TierStack& tiers, const Index& index, Epochs& epochs, const RowLayout& layout,
        CacheStrategy strategy);

  // The right to as many slots of the first tier, beyond its capacity if need be.
  class Claim {
   public:
    Claim(Claim&& other) noexcept : mover_(other.mover_), unused_(std::exchange(other.unused_, 0)) {}
    ~Claim();
    // REQUIRES: at most as many slots in all as were claimed.
    void take(std::span<Slot> slots);
    // Some of those taken, which weren't needed.
    void give_back(std::span<const Slot> slots);

   private:
    friend class Mover;
    Claim(Mover& mover, uint64_t count) : mover_(mover), unused_(count) {}

    Mover& mover_;
    uint64_t unused_;
  };
  // Waits for room, or makes it; throws what a tier threw. REQUIRES: count <= largest_claim(); the thread
  // holds no other claim and no lock.
  Claim claim(uint64_t count);
  uint64_t largest_claim() const { return largest_claim_; }

  // --- What serving look-ups read is counted, and promoted, soon after.
  ServedBatch take_spare_batch() { return log_.take_spare(); }
  void recycle(ServedBatch&& batch) { log_.recycle(std::move(batch)); }
  void count_served(ServedBatch&& batch);

  // Moves a row to the first tier, for a caller who found `entry` and holds the shard's mutex.
  // REQUIRES: `row` is the row that entry.ref() refers to, in a lower tier.
  void promote_entry(IndexShard& shard, const IndexEntry& entry, const RowHeader& header, const float* row,
                     Slot slot);

  // To be called, without locks, after rows came to the first tier: sets the eviction threads to work if it
  // is over its capacity, and lets the tiers below get back what the rows left.
  void rows_came();

  // Counts what is to be counted and moves until every tier is within its capacity; throws what a tier
  // threw.
  void settle();
  // Holds all moves off.
  [[nodiscard]] std::unique_lock<std::mutex> pause() { return std::unique_lock(move_mutex_); }
  // --- For whoever holds what pause() gave, and the apply gate alone.
  // Moves until every tier is within its capacity.
  void shrink_paused() { shrink_from(0); }
  // As claim().
  Claim claim_paused(uint64_t count) { return claim_locked(count); }
  // So many rows of the first tier were erased, rather than moved.
  void rows_left(uint64_t count) {
    free_slots_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
  }
  CacheStrategy strategy() const { return strategy_; }

  // Ends moving for good. REQUIRES: no operation is under way.
  void stop();

  uint64_t promotions() const { return promotions_.load(std::memory_order_relaxed); }
  uint64_t demotions() const { return demotions_.load(std::memory_order_relaxed); }

 private:
  void run() noexcept override;
  void relocate(std::span<Relocation> rows) override;
  std::optional<Claim> try_claim(uint64_t count);

  // REQUIRES, all of them: move_mutex_ is held.
  void settle_locked();
  Claim claim_locked(uint64_t count);
  // Accesses to one row in serving look-ups, the last of them at `stamp`.
  struct Accesses {
    int64_t key;
    uint64_t count;
    uint64_t stamp;
  };
  // The same to a row that was staged.
  struct StagedAccesses {
    uint32_t row;
    uint64_t count;
    uint64_t stamp;
  };
  void count_waiting();
  // Counts those whose rows are still in the first tier, and adds the others to `missed`.
  void count_hits(const ServedBatch& batch, std::vector<Accesses>& missed);
  void count_lower(const ServedBatch& batch, std::vector<Accesses>& missed);
  // Counts accesses to rows wherever they are now; those in lower tiers come up.
  void count_missed(std::vector<Accesses> missed);
  // Moves staged rows to the first tier and counts their accesses. Counts those that are there already.
  // Adds to `missed` those that are in files and aren't what was staged any more.
  // REQUIRES: no shard's mutex is held.
  void promote(const StagedRows& staged, std::span<const StagedAccesses> accesses,
               std::vector<Accesses>& missed);
  // Puts a row into `slot` of the first tier and has the index refer to it; returns the place that it left,
  // which is to be erased. REQUIRES: as promote_entry(), which does the rest too.
  Place move_up(IndexShard& shard, const IndexEntry& entry, const RowHeader& header, const float* row,
                Slot slot);
  // Moves rows down until tier t and those below it are within their capacities.
  void shrink_from(size_t t);
  // Moves some rows of tier t down; false where it's within its capacity. The tiers below are, afterwards,
  // but for what came.
  bool shrink_once(size_t t);
  struct Leaving {
    Place place;
    KeyHash hash;
    IndexHit found;
  };
  // Moves up to `count` of tier t's coldest rows down; returns how many went.
  uint64_t demote(size_t t, uint64_t count);

  TierStack& tiers_;
  const Index& index_;
  Epochs& epochs_;
  const RowLayout layout_;
  const CacheStrategy strategy_;
  const uint64_t largest_claim_;
  std::vector<ColdestRows> coldest_;  // guarded by move_mutex_; of every tier but the last
  // Guarded by move_mutex_; what is worked on, kept for its memory.
  std::vector<Leaving> leaving_;
  RowBatch leaving_rows_;

  AccessLog log_;
  std::atomic<int64_t> free_slots_;  // of the first tier, less what is claimed
  std::atomic<uint64_t> promotions_{0};
  std::atomic<uint64_t> demotions_{0};

  std::mutex move_mutex_;

  std::mutex error_mutex_;
  std::exception_ptr error_;  // guarded by error_mutex_; of the eviction threads, for the next who waits
};

}  // namespace embstore
