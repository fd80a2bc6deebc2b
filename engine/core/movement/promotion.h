// Moves rows up. Rows of lower tiers that outrank rows above, since serving look-ups accessed them, come to
// the tier where they belong. Rows of lower levels that will be needed soon come to the first.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "memory/page_vector.h"
#include "store/row_store.h"
#include "store/transaction.h"

namespace embstore {

class Phase;

// A row that is to come up: because of serving look-ups' accesses, which are counted, or with nothing to
// count.
struct RowToRaise {
  int64_t key;
  std::optional<ServedAccesses> served;
};

// For one thread at a time: it counts accesses, and relies on no row leaving the first tier meanwhile. Only
// the new rows of an update that is taken back may leave: accesses to them stay uncounted.
class Promotion {
 public:
  // Claims slots of a tier of memory. Returns nothing if a tier below the first has no room for them; throws
  // in this case for the first tier. Called without locks.
  using ClaimSlots = std::function<std::optional<SlotClaim>(size_t tier, uint64_t count)>;
  enum class Moves { kNow, kLater };
  // Returns the count and time below which a row from below doesn't belong in a ranked tier; nothing if that
  // is unknown. For kLater no row may move to find out, so the result may be lower.
  using FloorOf = std::function<std::optional<Rank>(size_t tier, Moves moves)>;
  Promotion(RowStore& store, ClaimSlots claim_slots, FloorOf floor_of)
      : store_(store),
        claim_slots_(std::move(claim_slots)),
        floor_of_(std::move(floor_of)),
        may_wait_(store.tiers().hbm() != nullptr ? MayWait::kAll : MayWait::kTies),
        max_waiting_(std::clamp<uint64_t>(store.tiers().capacity_rows(store.tiers().tier_of_level(0)) /
                                              (may_wait_ == MayWait::kAll ? 2 : 8),
                                          kMinMaxWaiting,
                                          may_wait_ == MayWait::kAll ? kMaxWaiting : kMaxTies)) {}

  // Counts the accesses of the batches, and moves up the rows that the batches found in lower tiers and that
  // don't belong there any more. A row that a medium doesn't give back stays where it is. On an error some
  // accesses are uncounted; no row is lost.
  void count(std::span<const BatchPtr> batches);

  // The same while steps on the device are under way: rows in a GPU's memory are left alone, and no row
  // moves. Accesses to rows that aren't where a look-up found them are left to the next count(). REQUIRES:
  // can_count_without_moves(), also for each batch.
  void count_without_moves(std::span<const BatchPtr> batches);
  bool can_count_without_moves() const;
  bool can_count_without_moves(const BatchInFlight& batch) const;
  bool has_uncounted() const { return !uncounted_.empty(); }
  // Leaves these rows' accesses to the next count().
  void add_uncounted(std::span<const RowToRaise> rows) {
    uncounted_.insert(uncounted_.end(), rows.begin(), rows.end());
  }
  // Takes rows with nothing to count: those that outrank rows above wait from now on. Called while steps on
  // the device are under way. REQUIRES: can_count_without_moves().
  void take_in_without_moves(std::span<const RowToRaise> rows);

  // Rows that have as many accesses as the coldest row above, and more recent ones, wait below until this is
  // called: many are outranked by then. Below a GPU's memory rows that have more accesses wait, too: steps on
  // the device wait while rows move. Moves up some of the waiting rows that aren't outranked; false if none
  // waits.
  bool raise_some_waiting();
  // Returns whether so many rows wait that all of those that aren't outranked should come up.
  bool has_many_waiting() const { return !raising_.empty() || waiting_.size() >= max_waiting_; }
  // Returns whether some rows have to come up before more may wait.
  bool has_too_many_waiting() const { return !raising_.empty() && waiting_.size() >= max_waiting_; }

  // Moves up rows of lower levels as they are, without counting. Otherwise it works as count() does.
  void bring_up(std::span<const int64_t> keys);

  // Returns whether so many of the rows that look-ups read lately have come up that look-ups should read
  // whole rows: otherwise rows that come up are read again. Rows in memory don't matter. Thread-safe.
  bool should_read_whole_rows() const { return should_read_whole_rows_.load(std::memory_order_relaxed); }

  uint64_t promoted_rows() const { return promoted_.load(std::memory_order_relaxed); }
  void note_promoted(uint64_t rows) { promoted_.fetch_add(rows, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kMinMaxWaiting = 64;
  static constexpr uint64_t kMaxWaiting = uint64_t{1} << 20;
  static constexpr uint64_t kMaxTies = uint64_t{1} << 16;

  // Counts accesses to the key's row in the slot of the first tier. Returns false, and counts nothing, if the
  // row isn't there.
  bool count_served(Slot slot, int64_t key, const ServedAccesses& accesses);
  // The rows that wait below although they belong higher.
  enum class MayWait { kNone, kTies, kAll };
  // Counts accesses to rows that are still in the first tier, and adds all others to `missed`.
  void count_hits(const BatchInFlight& batch, PageVector<RowToRaise>& missed);
  // Gives each access in `missed` the time of its key's last access in the batches: later accesses were
  // counted before it, and a tier may have kept their number alone.
  static void note_last_accesses(std::span<const BatchPtr> batches, PageVector<RowToRaise>& missed);
  // Counts accesses to rows wherever they are now; rows in lower tiers come up. If there is nothing to count,
  // rows in lower levels do.
  void bring_up_missed(PageVector<RowToRaise> missed, MayWait may_wait);
  // Counts served_by(tag), if there is something, and moves up rows that were found in lower tiers: of the
  // counted ones, those that belong higher. Adds rows that aren't what was read any more, or weren't read as
  // a whole, to `missed`, uncounted. Returns how many of the rows that come up aren't in memory.
  template <class ServedBy>
  uint64_t promote(BatchInFlight& batch, PageVector<RowToRaise>& missed, const ServedBy& served_by,
                   MayWait may_wait);
  // Notes that `rows` of the rows that look-ups read outside memory come up.
  void note_rise(std::span<const BatchInFlight* const> batches, uint64_t rows);
  // The floors of the tiers above the batch's rows.
  using Floors = std::array<std::optional<Rank>, RowRef::kMaxTiers>;
  Floors floors_above(std::span<const BatchInFlight* const> batches, Moves moves) const;
  // Positions in the batch of rows that are to come up, by the tier that they come to.
  using Rising = std::array<PageVector<uint32_t>, RowRef::kMaxTiers>;
  // A row that waits, and how it ranked when all accesses to it were counted.
  struct Waiting {
    int64_t key;
    Rank rank;
  };
  // The result of counting the rows of one shard.
  struct ShardCounts {
    Rising rising;
    PageVector<RowToRaise> missed;
    PageVector<Waiting> waiting;
    uint64_t from_files = 0;  // how many of those that rise or were missed aren't in memory
  };
  // Calls count(s, counts of shard s) and then raise(the rows of it that rise) for all shards, in their
  // order, and adds to `missed`. If there are enough rows, several threads count at a time, and rows rise
  // when all have ended. Returns how many of the rows that rise or were missed aren't in memory.
  template <class Count, class Raise>
  uint64_t count_shards(size_t rows, PageVector<RowToRaise>& missed, const Count& count, const Raise& raise);
  // Counts accesses to the batch's rows in shard `number` where they are. Adds all other rows to `result`: to
  // those that rise, or to the missed if they weren't read as a whole. REQUIRES: the batch is in the order of
  // the shards.
  template <class ServedBy>
  void count_in_place(const BatchInFlight& batch, size_t number, const Floors& floors,
                      const ServedBy& served_by, MayWait may_wait, ShardCounts& result) const;
  // Counts accesses to row i if it stays or waits in its tier, and the tier can count them. Otherwise returns
  // the tier to which the row is to come.
  std::optional<size_t> count_or_raise(IndexShard& shard, const BatchInFlight& batch, size_t i,
                                       const ServedAccesses& served, const Floors& floors, MayWait may_wait,
                                       Phase& phase, PageVector<Waiting>& waiting) const
      REQUIRES(shard.mutex);
  // Counts served_by(batch, tag) of the batches' rows where they are, and adds those that rise to `missed`.
  template <class ServedBy>
  void count_batches_in_place(std::span<const BatchInFlight* const> batches, const ServedBy& served_by,
                              PageVector<RowToRaise>& missed);
  void start_raising_waiting();
  // Returns a rank below which no row is to come up; nothing if that is unknown.
  std::optional<Rank> min_floor() const;
  // Returns where rows that belong in tier t come to: a stage, or the first tier, if rows can't be put into
  // the tier itself.
  size_t entry_tier(size_t t) const {
    return store_.tiers().level_of(t) == 0 || store_.tiers().memory(t) == nullptr ? 0 : t;
  }
  // Moves these rows, which are of one shard, to tier `to`.
  template <class ServedBy>
  void promote_rows(size_t to, const BatchInFlight& batch, std::span<const uint32_t> rows,
                    PageVector<RowToRaise>& missed, const ServedBy& served_by);

  RowStore& store_;
  const ClaimSlots claim_slots_;
  const FloorOf floor_of_;
  const MayWait may_wait_;
  const size_t max_waiting_;
  PageVector<Waiting> waiting_;
  PageVector<Waiting> raising_;       // those of waiting_ that come up now; the highest last
  PageVector<RowToRaise> uncounted_;  // left to the next count()
  std::atomic<uint64_t> promoted_{0};
  std::atomic<bool> should_read_whole_rows_{true};
};

}  // namespace embstore
