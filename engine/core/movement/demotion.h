// Moves rows down: a tier over its capacity gives up its coldest rows. They go to the next tier; but rows of
// the stage go past a GPU's memory that is full of rows which all outrank them.
//
// A row is copied without locks and written to the tier below. Then, under its shard's mutex and if the row
// didn't change meanwhile, the index is made to refer to the copy. So a row is never lost or doubled: the
// index refers to exactly one place at any time. A pinned row stays, and keeps its turn: no hotter row goes
// in its place.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "movement/coldest_rows.h"
#include "movement/prefetched_rows.h"
#include "store/row_store.h"
#include "store/transaction.h"

namespace embstore {

// For one thread at a time.
class Demotion {
 public:
  // Rows that move down at once: enough to write them in large pieces, few enough that the slots they leave
  // are still in the cache when other rows come.
  static constexpr uint64_t kRowsAtOnce = 2048;

  // REQUIRES: the store has several tiers, and those that are ranked have no rows yet. `prefetched`: the rows
  // that stay in the tier in a GPU's memory, if there is one; outlives this.
  Demotion(RowStore& store, CacheStrategy strategy, const PrefetchedRows& prefetched);

  // Moves some rows down from a tier that has too many. Returns false if no tier has, or if all rows that
  // could go are pinned. Throws what a tier throws; then all rows are where they were, except those that had
  // moved before.
  bool step(uint64_t max_rows = kRowsAtOnce);
  // Moves at most `count` rows of tier t down although it is within its capacity. Returns false if none can
  // go.
  bool make_room(size_t t, uint64_t count);
  // Moves rows out of slots that were added for large batches, as far as other slots are free. Removes the
  // added slots and their memory if none is left in use.
  void vacate_added_slots();
  // Returns the rank below which a row from below doesn't belong in tier t, which is full of rows that rank
  // as high, or higher. Nothing if the tier isn't full. REQUIRES: the tier is ranked.
  std::optional<Rank> floor_of(size_t t);
  // The same by ranks that are brought up to date: it may be higher.
  std::optional<Rank> current_floor_of(size_t t);
  std::optional<Rank> coldest_rank(size_t t);
  // Returns the rank of the coldest row of a ranked tier.
  std::optional<Rank> min_rank(size_t t) const { return coldest_[t].min_rank(); }

  // Lets the row, which was prefetched to the tier in a GPU's memory, move down again.
  void release(Slot slot) { coldest_[store_.tiers().tier_of_level(0)].release(slot); }

  uint64_t demoted_rows() const { return demoted_.load(std::memory_order_relaxed); }

 private:
  // The rows that go: those beyond the capacity, as many as there are when they are chosen; or any.
  enum class Which { kExcess, kAny };
  uint64_t rows_to_go(size_t t, Which which) const;
  // Moves up to `count` of tier t's coldest rows down. Returns false if only pinned rows are left to go.
  bool demote(size_t t, uint64_t count, Which which);
  // Sets `candidates_` to those of the coldest rows that can go, coldest first. Returns how many can't: they
  // are pinned or damaged.
  uint64_t choose(size_t t, uint64_t count, Which which);
  // Returns the lowest tier that rows of tier t go to.
  size_t lowest_below(size_t t) const;
  // The rank of the coldest row in a GPU's memory, and by how many rows that memory and the stage together
  // are over their capacity. That many rows go past the GPU's memory, if they rank lower.
  struct Floor {
    Rank rank;
    uint64_t rows_too_many;
  };
  // Returns the floor for rows that leave tier t; nothing if none goes past another tier.
  std::optional<Floor> floor_below(size_t t);
  // Returns the tier that a row of tier t goes to, and counts it in `floor`. REQUIRES: colder rows were asked
  // about before.
  size_t destination_of(size_t t, int64_t key, const Rank& rank, std::optional<Floor>& floor) const;
  // Adds the candidates that go from tier t to tier `to` to `leaving`. They are read unless `to` has a copy
  // of them already.
  void add_leaving(size_t t, size_t to, BatchInFlight& leaving) const;
  // Has damaged rows stay from now on. Callers who want these rows get the error.
  void note_damaged(size_t t, const RowBatch& rows);
  bool is_unreadable(size_t t, const ColdestRows::Candidate& row) const;
  // Returns where the row goes: to the copy that is written now, or to one that its tier has. Nothing if that
  // copy is gone by now.
  RowRef place_below(const BatchInFlight::Found& row, const RowBatch& rows, RowCopies& copies) const;
  uint64_t refer_to_copies(size_t t, size_t to, const BatchInFlight& leaving);

  RowStore& store_;
  const CacheStrategy strategy_;
  const PrefetchedRows& prefetched_;
  std::deque<ColdestRows> coldest_;  // of every tier but the last
  // Rows that their medium doesn't give back, with the rank that they had then, which stays: no access
  // succeeds.
  struct Unreadable {
    size_t tier;
    ColdestRows::Candidate row;
  };
  std::vector<Unreadable> unreadable_;
  std::atomic<uint64_t> demoted_{0};
  struct Candidate {
    int64_t key;
    IndexHit hit;
    Rank rank;
    size_t to;
    uint64_t turn;  // the number of colder rows that go before it
  };
  std::vector<Candidate> candidates_;  // kept for its memory
};

}  // namespace embstore
