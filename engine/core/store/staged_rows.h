// Rows of lower tiers that were read without any lock, each with what tells whether it is still true.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "memory/page_vector.h"
#include "platform/prefetch.h"
#include "row/row_batch.h"
#include "store/index/index_reader.h"
#include "store/tier_stack.h"

namespace embstore {

class StagedRows {
 public:
  struct Wanted {
    int64_t key;
    KeyHash hash;
    IndexHit hit;
    size_t tag;  // the caller's
  };

  explicit StagedRows(const RowLayout& layout) : rows_(layout), tier_rows_(layout) {}

  void clear() {
    wanted_.clear();
    rows_.clear();
    damaged_.clear();
  }
  // Starts over. To be called before rows are found.
  void start(const TierStack& tiers);
  bool empty() const { return wanted_.empty(); }
  size_t size() const { return wanted_.size(); }
  size_t size_bytes() const {
    return size() * (sizeof(Wanted) + sizeof(RowHeader) + rows_.row_floats() * sizeof(float));
  }

  size_t memory_bytes() const {
    return wanted_.capacity() * sizeof(Wanted) + places_.capacity() * sizeof(Place) + rows_.memory_bytes() +
           tier_rows_.memory_bytes();
  }

  // REQUIRES: hit.ref refers to a row.
  void add(int64_t key, KeyHash hash, const IndexHit& hit, size_t tag) {
    wanted_.push_back({key, hash, hit, tag});
  }
  // Reads all that was added, one batch a tier, and puts it in the order of the tiers.
  // REQUIRES: a guard of the epochs was held since they were found, and is held on.
  void read(const TierStack& tiers, RowPart part = RowPart::kAll);

  const Wanted& wanted(size_t i) const { return wanted_[i]; }
  // True if row i is still where it was when it was read: what was read is the row then, unless is_damaged(i).
  // A change of a neighbour in the index makes this false too.
  // REQUIRES: the guard that was held when they were found still is.
  bool holds(size_t i) const { return wanted_[i].hit.holds(); }
  // True if row i, which is at `now`, is still where it was when it was read. Needs no guard, and neighbours in
  // the index don't matter; but it's false too where the tier has used places again.
  bool holds_at(size_t i, RowRef now, const TierStack& tiers) const {
    const RowRef then = wanted_[i].hit.ref;
    return now == then && tiers.tier(then.tier()).reused_places() == reused_places_[then.tier()];
  }
  // True if the tier didn't give row i back as it was written. Says nothing of a row that isn't there any more.
  bool is_damaged(size_t i) const {
    return rows_.header(i).key != wanted_[i].key || (!damaged_.empty() && damaged_at(i) != nullptr);
  }
  std::string damage(size_t i) const;

  const RowHeader& header(size_t i) const { return rows_.header(i); }
  const float* row(size_t i) const { return rows_.row(i); }
  void prefetch(size_t i) const {
    prefetch_line(&rows_.header(i));
    prefetch_row(rows_.row(i), rows_.row_floats());
  }

 private:
  const DamagedRow* damaged_at(size_t i) const;

  std::array<uint64_t, RowRef::kMaxTiers> reused_places_{};  // of each tier, before rows were found
  PageVector<Wanted> wanted_;
  RowBatch rows_;
  std::vector<DamagedRow> damaged_;  // by position
  // What read() works with, kept for its memory.
  RowBatch tier_rows_;
  PageVector<Place> places_;
};

}  // namespace embstore
