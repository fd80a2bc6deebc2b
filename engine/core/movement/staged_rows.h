// Rows of lower tiers that were read without any lock, each with what tells whether it is still true.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "platform/prefetch.h"
#include "row/row_batch.h"
#include "store/index/index_reader.h"
#include "store/tier_stack.h"

namespace embstore {

class StagedRows {
 public:
  struct Entry {
    int64_t key;
    KeyHash hash;
    IndexHit found;
    size_t tag;  // the caller's
  };

  explicit StagedRows(const RowLayout& layout) : rows_(layout), tier_rows_(layout) {}

  void clear() {
    entries_.clear();
    rows_.clear();
  }
  // Starts over. To be called before rows are found.
  void start(const TierStack& tiers);
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  size_t size_bytes() const {
    return size() * (sizeof(Entry) + sizeof(RowHeader) + rows_.row_floats() * sizeof(float));
  }

  // REQUIRES: found.ref refers to a row.
  void add(int64_t key, KeyHash hash, const IndexHit& found, size_t tag) {
    entries_.push_back({key, hash, found, tag});
  }
  // Reads all that was added, one batch a tier, and puts the entries in the order of their tiers.
  // REQUIRES: a guard of the epochs was held since they were found, and is held on.
  void read(const TierStack& tiers, RowPart part = RowPart::kAll);

  const Entry& entry(size_t i) const { return entries_[i]; }
  // True if what was read of row i is whole and, while its shard's mutex is held, still the row.
  // A change of a neighbour in the index makes this false too: settle it for all rows of a shard before
  // any of them is changed.
  // REQUIRES: the guard that was held when they were found still is.
  // Throws Error(kStorage) where a tier lost the row.
  bool holds(size_t i) const;
  // The same, for somebody who knows where the row is now, and may hold no such guard any more. Neighbours
  // don't matter here, but it's false too where the tier has used places again.
  bool holds_at(size_t i, RowRef now, const TierStack& tiers) const;
  const RowHeader& header(size_t i) const { return rows_.header(i); }
  void prefetch(size_t i) const {
    prefetch_line(&rows_.header(i));
    prefetch_row(rows_.row(i), rows_.row_floats());
  }
  const float* row(size_t i) const { return rows_.row(i); }

 private:
  void check_key(size_t i) const;

  std::array<uint64_t, RowRef::kMaxTiers> reused_places_{};  // of each tier, before rows were found
  std::vector<Entry> entries_;
  RowBatch rows_;
  RowBatch tier_rows_;
  std::vector<Place> places_;
};

}  // namespace embstore
