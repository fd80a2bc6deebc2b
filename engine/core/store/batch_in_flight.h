// A batch of keys whose rows are in flight: where the index had them, the rows themselves, which were read
// from their tiers without a lock, and what is needed to tell whether each row is still valid. Look-ups read
// rows with it, updates and promotions bring rows up, demotions take them down.
//
// The rows of each tier lie in a RowBatch of their own, so that a tier is read and written in one call.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "memory/page_vector.h"
#include "platform/prefetch.h"
#include "row/key_hash.h"
#include "row/ranking.h"
#include "row/row_batch.h"
#include "store/index/index_reader.h"
#include "store/shard_order.h"
#include "store/tier_stack.h"

namespace embstore {

class BatchInFlight {
 public:
  // A key, and what the index said about it.
  struct Found {
    int64_t key;
    IndexHit hit;
    uint64_t tag;  // the caller's
    size_t row;    // the row's number among the batch's rows of its tier

    KeyHash hash() const { return hash_key(key); }
  };
  // The number of a row that is not to be read.
  static constexpr size_t kUnread = static_cast<size_t>(-1);

  explicit BatchInFlight(const RowLayout& layout);

  void clear();
  // Starts over. Must be called before the rows are found.
  void start(const TierStack& tiers);

  // REQUIRES for add() and add_unread(): hit.ref refers to a row.
  void add(int64_t key, const IndexHit& hit, uint64_t tag = 0) {
    RowBatch& rows = tiers_[hit.ref.tier()];
    found_.push_back({key, hit, tag, rows.places().size()});
    is_in_order_ = false;
    rows.add_place({key, hit.ref.slot()});
  }
  // Adds a row that is part of the batch but is not read.
  void add_unread(int64_t key, const IndexHit& hit) {
    found_.push_back({key, hit, 0, kUnread});
    is_in_order_ = false;
  }
  // Puts the keys in the order of their shards. Rows that were read stay with their keys.
  void order_by_shards();
  // Returns the numbers of the keys in a shard, from the first up to the second. REQUIRES: no key was added
  // since order_by_shards().
  std::pair<size_t, size_t> rows_of_shard(size_t shard) const {
    return {shard_bounds_[shard], shard_bounds_[shard + 1]};
  }
  // Reads the added rows, those of each tier in one call. REQUIRES: a guard of the epochs was held since the
  // rows were found, and stays held.
  void read(const TierStack& tiers);
  // Reads as read() does, for look-ups and rows that are to come up, but leaves out rows in memory tiers: the
  // thread that uses or moves such a row reads it in place.
  void read_to_raise(const TierStack& tiers, RowPart part = RowPart::kAll);
  // Returns the number of added rows that read_to_raise() reads.
  size_t rows_outside_memory(const TierStack& tiers) const;

  bool empty() const { return found_.empty(); }
  size_t size() const { return found_.size(); }
  const Found& found(size_t i) const { return found_[i]; }
  // The rows of tier t that were read, in a form in which another tier can write them.
  const RowBatch& rows_of(size_t t) const { return tiers_[t]; }

  // --- The rows that were read. REQUIRES for row i: it was added to be read. True if row i is still where it
  // was when it was read; then what was read is the row, unless is_damaged(i). A change of a neighbour in the
  // index makes it false, too. REQUIRES: the guard that was held when rows were found still is.
  bool is_valid(size_t i) const { return found_[i].hit.is_valid(); }
  // True if row i, which is at `now`, is still where it was when it was read. Needs no guard, and changes of
  // neighbours in the index don't matter; but it is false, too, if the tier has reused places since. For a
  // row in a memory tier it doesn't say that what was read is still the row: the row may have been changed in
  // place.
  bool is_valid_at(size_t i, RowRef now, const TierStack& tiers) const {
    const RowRef then = found_[i].hit.ref;
    return now == then && tiers.tier(then.tier()).reused_places() == reused_places_[then.tier()];
  }
  // True if the tier didn't return row i as it was written. Says nothing about a row that is no longer there.
  bool is_damaged(size_t i) const {
    return header(i).key != found_[i].key || rows_with(i).is_damaged(found_[i].row);
  }
  std::string damage(size_t i) const;
  // True if row i was read as a whole, not its weights alone.
  bool is_whole(size_t i) const { return rows_with(i).are_whole(); }

  const RowHeader& header(size_t i) const { return rows_with(i).header(found_[i].row); }
  const float* row(size_t i) const { return rows_with(i).row(found_[i].row); }
  void prefetch(size_t i) const {
    prefetch_line(&header(i));
    prefetch_row(row(i), rows_with(i).row_floats());
  }

  size_t size_bytes() const;
  // All memory that the batch holds, including unused capacity.
  size_t memory_bytes() const;

  // --- The results of a serving look-up, kept until its accesses are counted: all of its ids, where each
  // id's row was seen (empty for ids without a row), and the stamp of the batch's first id; the other ids
  // have the stamps after it. A tag is a position among the ids.
  PageVector<int64_t> ids;
  PageVector<RowRef> refs;
  uint64_t first_stamp = 0;
  // For each of `ids`, its last position in the batch and how often it occurs. Empty if `ids` is the whole
  // batch in its order, and each id is one access.
  PageVector<uint32_t> last_positions;
  PageVector<uint32_t> occurrences;
  ServedAccesses accesses(size_t i) const {
    if (last_positions.empty()) return {first_stamp + i, 1};
    return {first_stamp + last_positions[i], occurrences[i]};
  }
  // If a row was found several times, sets the time of all these accesses to that of the last one. Otherwise
  // one access might bring the row to a middle tier by its own time, while a later one, which is ranked
  // without the first, makes the row wait for a higher tier; and files keep no times.
  void share_last_times();
  uint64_t access_count() const {
    return occurrences.empty() ? ids.size()
                               : std::accumulate(occurrences.begin(), occurrences.end(), uint64_t{0});
  }

 private:
  const RowBatch& rows_with(size_t i) const { return tiers_[found_[i].hit.ref.tier()]; }

  PageVector<Found> found_;
  ShardBounds shard_bounds_{};
  // True if found_ is in the order of the shards, so that shard_bounds_ are valid.
  bool is_in_order_ = false;
  std::vector<RowBatch> tiers_;                              // kMaxTiers of them
  std::array<uint64_t, RowRef::kMaxTiers> reused_places_{};  // each tier's, before rows were found
};

// One row of a batch in flight.
struct RowInFlight {
  const BatchInFlight* batch = nullptr;
  size_t i = 0;

  explicit operator bool() const { return batch != nullptr; }
};

}  // namespace embstore
