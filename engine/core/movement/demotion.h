// Moves rows down: a tier over its capacity gives up the coldest of its rows. They go to the next tier; but those of the stage go past
// a GPU's memory that is full of rows which all outrank them.
//
// A row is copied without locks, written to the tier below, and then, under its shard's mutex and if it didn't
// change meanwhile, the index is made to refer to the copy. So a row is never lost or doubled: exactly one place is
// referred to at any time. A row that is pinned stays, and keeps its turn: no hotter one goes in its place.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "movement/coldest_rows.h"
#include "movement/wanted_rows.h"
#include "store/row_store.h"
#include "store/transaction.h"

namespace embstore {

// For one thread at a time.
class Demotion {
 public:
  // Rows that go down at once: enough to write them in large pieces, few enough that the slots they leave are still in the
  // cache when other rows come.
  static constexpr uint64_t kRowsAtOnce = 2048;

  // REQUIRES: the store has several tiers, and no rows in those that are ranked yet. `wanted`: which rows stay in the tier in a
  // GPU's memory, if there is one; outlives this.
  Demotion(RowStore& store, CacheStrategy strategy, const WantedRows& wanted);

  // Moves some rows down from where there are too many; false where there are none, or only such as are
  // pinned. Throws what a tier throws; all rows are where they were then, but for what had moved before.
  bool step(uint64_t most_rows = kRowsAtOnce);
  // Moves some rows of a tier down, at most `count`, though it has no more than it may hold; false where none can go.
  bool make_room(size_t t, uint64_t count);
  // Moves what lies in slots that were added for large batches to others, as far as they are free, and takes those
  // slots and their memory away if none is left in use.
  void vacate_added_slots();
  // A row from below that ranks lower than this doesn't belong in tier t, which is full of rows that rank as high, or higher.
  // Nothing where it isn't full. REQUIRES: the tier is ranked.
  std::optional<Rank> floor_of(size_t t);
  // The same where ranks don't lag: it may be higher.
  std::optional<Rank> current_floor_of(size_t t);
  std::optional<Rank> coldest_rank(size_t t);
  // How the coldest row of a ranked tier ranks.
  std::optional<Rank> least_rank(size_t t) const { return coldest_[t].least_rank(); }

  // The row, which is in the tier in a GPU's memory, isn't wanted any more.
  void may_go(Slot slot) { coldest_[store_.tiers().tier_of_level(0)].may_go(slot); }

  uint64_t demoted_rows() const { return demoted_.load(std::memory_order_relaxed); }

 private:
  // Which rows are to go: those that are too many, as many as there still are when they are chosen, or any.
  enum class Which { kExcess, kAny };
  uint64_t rows_to_go(size_t t, Which which) const;
  // Moves up to `count` of tier t's coldest rows down; false where nothing but pinned rows is left to go.
  bool demote(size_t t, uint64_t count, Which which);
  // Sets `candidates_` to the coldest rows, by shard; returns how many of the coldest are pinned.
  uint64_t choose(size_t t, uint64_t count, Which which);
  // The lowest tier that rows of tier t go to.
  size_t lowest_below(size_t t) const;
  // How the coldest row in a GPU's memory ranks, and how many rows it and the stage have too many: so many go past it, first those that
  // rank lower.
  struct Floor {
    Rank rank;
    uint64_t rows_too_many;
  };
  // Of rows that leave tier t: nothing where none goes past another.
  std::optional<Floor> floor_below(size_t t);
  // The tier that a row of tier t goes to, which `floor` counts from now on. REQUIRES: colder ones were asked about before.
  size_t way_down(size_t t, int64_t key, const Rank& rank, std::optional<Floor>& floor) const;
  // Adds the candidates that go from tier t to tier `to` to `leaving`, to be read where that tier doesn't have them already.
  void add_leaving(size_t t, size_t to, BatchInFlight& leaving) const;
  // Has damaged rows stay from now on; whoever wants them is told.
  void note_damaged(size_t t, const RowBatch& rows);
  bool is_unreadable(size_t t, const ColdestRows::Candidate& row) const;
  // Where the row goes: to the copy that is written now, or to one that its tier has. Nothing where it has none any more.
  RowRef place_below(const BatchInFlight::Found& row, const RowBatch& rows, RowCopies& copies) const;
  uint64_t refer_to_copies(size_t t, size_t to, const BatchInFlight& leaving);

  RowStore& store_;
  const CacheStrategy strategy_;
  const WantedRows& wanted_;
  std::deque<ColdestRows> coldest_;  // of every tier but the last
  // Rows that their medium doesn't give back, as they ranked then: nobody accesses them.
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
    uint64_t turn;  // so many colder ones go before it
  };
  std::vector<Candidate> candidates_;  // kept for its memory
};

}  // namespace embstore
