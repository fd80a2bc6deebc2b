// Finds the rows of a ranked tier that rank lowest, without looking at all of them every time.
//
// Ranks only grow while a row stays. So a row that was there at a scan, and that the scan didn't find among
// the coldest, ranks no lower now than the scan's limit was; and rows that came since are known by their
// slots. The coldest row is thus the least of those kept here, once its rank is brought up to date, as long
// as that rank isn't above the limit. Beyond the limit, the tier is scanned again. If the tier's ranks lag,
// this holds for their old values: the rows that seem coldest are brought up to date before any is returned.
//
// Prefetched rows (prefetched_rows.h) are left out until release() is called for them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "movement/prefetched_rows.h"
#include "row/ranking.h"
#include "tiers/memory/ranked_tier.h"
#include "tiers/memory/slot_set.h"

namespace embstore {

// For one thread at a time.
class ColdestRows {
 public:
  struct Candidate {
    Rank rank;
    Slot slot;
  };

  // REQUIRES: the tier has no rows yet. `prefetched`: rows that stay in the tier; null: none.
  ColdestRows(RankedTier& tier, CacheStrategy strategy, const PrefetchedRows* prefetched = nullptr);

  // Returns up to `count` rows that rank lowest, coldest first and each once, pinned ones among them. Returns
  // none only if there are none, and pinned ones alone only if all rows, or the `count` coldest, are pinned.
  // Rows that are accessed meanwhile may be ranked by their old value. The next call returns the same rows
  // again, unless note_left() was called for them.
  const std::vector<Candidate>& next(uint64_t count);
  void note_left(Slot slot) { is_given_.remove(slot); }
  // Lets the row in the slot, which was prefetched, move down again.
  void release(Slot slot);
  // Returns a rank that no row that may go is below: that of the coldest such row, or its old value if ranks
  // lag. Nothing if there is no such row. Costs as little as next(1).
  std::optional<Rank> lower_bound();
  // Returns the rank of the coldest row, prefetched rows included; nothing if there is none.
  std::optional<Rank> min_rank() const;

 private:
  uint64_t rows_a_scan() const;
  void scan();
  // Sets `rows` to about `count` rows that rank lowest, in any order. Returns a limit that none of the other
  // rows ranks below. Rows that are accessed meanwhile may be ranked by their old value.
  Rank find_coldest(uint64_t count, std::vector<Candidate>& rows, const PrefetchedRows* prefetched) const;
  // Returns a rank that about `count` of the rows in the first `slots` slots don't exceed.
  Rank sampled_limit(uint64_t slots, uint64_t count, const PrefetchedRows* prefetched) const;
  bool is_filled(Slot slot) const { return ranks_.is_filled(slot); }
  bool is_among(const PrefetchedRows* prefetched, Slot slot) const {
    return prefetched != nullptr && prefetched->contains(tier_.key(slot));
  }
  Rank rank_of(Slot slot) const { return ranks_.rank(slot, strategy_); }
  // Takes the coldest known row, by a rank that it had; false if none is known.
  bool take_coldest(Candidate& row);
  void keep(const Candidate& row);
  void sort_late();
  void keep_given();
  void add_arrivals();
  // Brings the ranks of `row` and of other rows that seem coldest up to date, and keeps these rows by them.
  void refresh(const Candidate& row, uint64_t count);
  void forget_current();

  RankedTier& tier_;
  SlotRanks& ranks_;
  const CacheStrategy strategy_;
  const PrefetchedRows* const prefetched_;

  // All of these have a rank that the row had at some time.
  std::vector<Candidate> sorted_;  // the coldest first
  size_t next_sorted_ = 0;
  std::vector<Candidate> late_;   // rows that came or changed since; a heap, the coldest on top
  Rank limit_;                    // rows that aren't kept here rank at least as high
  std::vector<Candidate> given_;  // returned by the last next()
  SlotSet is_given_;              // those of given_ that haven't left
  std::vector<Slot> arrivals_;    // slots that were taken, and may not be filled yet
  SlotSet is_current_;            // slots whose rank this call has brought up to date
  std::vector<Slot> current_;     // the same slots
};

}  // namespace embstore
