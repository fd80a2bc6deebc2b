// Which rows of a ranked tier rank lowest, without a look at all of them every time.
//
// Ranks only grow while a row stays. So of the rows that were there at a scan, those that it didn't find
// among the coldest rank no lower now than its limit was; and whatever came since is known by its slot. The
// coldest row is thus the least of what is kept here, once its rank is brought up to date, as long as that
// isn't above the limit. Beyond it, the tier is scanned again. Where the tier's ranks lag, the same holds of what they were:
// those that seem coldest are brought up to date before any is given.
//
// Rows that are wanted where they are (wanted_rows.h) are none of these until they may go again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "movement/wanted_rows.h"
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

  // REQUIRES: the tier has no rows yet. `wanted`: rows that stay; null: none.
  ColdestRows(RankedTier& tier, CacheStrategy strategy, const WantedRows* wanted = nullptr);

  // Up to `count` rows that rank lowest, coldest first and each once, pinned ones among them; none only if there are
  // none, and none but pinned ones only if all rows, or the `count` coldest, are pinned. Rows that are accessed meanwhile
  // may be ranked by what they were before. They come again next time, unless they are said to have left.
  const std::vector<Candidate>& next(uint64_t count);
  void left(Slot slot) { is_given_.remove(slot); }
  // The row in the slot isn't wanted any more.
  void may_go(Slot slot);
  // No row that may go ranks lower: how the coldest ranks, or where ranks lag, how it did. Nothing where there is none. Costs as
  // little as next() of one row.
  std::optional<Rank> lower_bound();
  // How the coldest row ranks; nothing where there is none.
  std::optional<Rank> least_rank() const;

 private:
  uint64_t rows_a_scan() const;
  void scan();
  // Sets `rows` to those that rank lowest, about `count` of them, in any order; no row of the rest ranks lower
  // than the limit that is returned. Rows that are accessed meanwhile may be ranked by what they were before.
  Rank find_coldest(uint64_t count, std::vector<Candidate>& rows, const WantedRows* wanted) const;
  // A rank that about `count` of the rows in the first `slots` slots don't exceed.
  Rank sampled_limit(uint64_t slots, uint64_t count, const WantedRows* wanted) const;
  bool is_filled(Slot slot) const { return ranks_.is_filled(slot); }
  bool is_among(const WantedRows* wanted, Slot slot) const {
    return wanted != nullptr && wanted->contains(tier_.key(slot));
  }
  Rank rank_of(Slot slot) const { return ranks_.rank(slot, strategy_); }
  // Takes the coldest row that is known, by a rank that it had; false where none is.
  bool take_coldest(Candidate& row);
  void keep(const Candidate& row);
  void sort_late();
  void keep_given();
  void add_arrivals();
  // Brings the ranks of `row` and of others that seem coldest up to date, and keeps them by those.
  void refresh(const Candidate& row, uint64_t count);
  void forget_current();

  RankedTier& tier_;
  SlotRanks& ranks_;
  const CacheStrategy strategy_;
  const WantedRows* const wanted_;

  // All with a rank that each row had.
  std::vector<Candidate> sorted_;  // the coldest first
  size_t next_sorted_ = 0;
  std::vector<Candidate> late_;   // what came or changed since; a heap, the coldest on top
  Rank limit_;                    // all rows that aren't kept here rank as high, or higher
  std::vector<Candidate> given_;  // by the last call
  SlotSet is_given_;              // without those that have left
  std::vector<Slot> arrivals_;    // slots that were taken, and maybe not filled yet
  SlotSet is_current_;            // whose rank was brought up to date since this call began
  std::vector<Slot> current_;     // the same
};

}  // namespace embstore
