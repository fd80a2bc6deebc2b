// A batch of keys whose rows are in flight: where the index had them, and the rows themselves, read from their tiers
// without any lock, with what tells whether each is still true. Look-ups read rows by it, updates and promotions bring
// them up, demotions take them down.
//
// The rows of each tier lie in a RowBatch of their own, so that a tier is read and written in one piece.
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
  // A key, and what the index said of it.
  struct Found {
    int64_t key;
    IndexHit hit;
    uint64_t tag;  // the caller's
    size_t row;    // its number among the rows of its tier

    KeyHash hash() const { return hash_key(key); }
  };
  // The number of a row that isn't to be read.
  static constexpr size_t kUnread = static_cast<size_t>(-1);

  explicit BatchInFlight(const RowLayout& layout);

  void clear();
  // Starts over. To be called before rows are found.
  void start(const TierStack& tiers);

  // REQUIRES, of these two: hit.ref refers to a row.
  void add(int64_t key, const IndexHit& hit, uint64_t tag = 0) {
    RowBatch& rows = tiers_[hit.ref.tier()];
    found_.push_back({key, hit, tag, rows.places().size()});
    is_in_order_ = false;
    rows.add_place({key, hit.ref.slot()});
  }
  // A row that goes along without being read.
  void add_unread(int64_t key, const IndexHit& hit) {
    found_.push_back({key, hit, 0, kUnread});
    is_in_order_ = false;
  }
  // Puts the keys in the order of their shards. What was read stays theirs.
  void order_by_shards();
  // The numbers of those in a shard, from the first up to the second. REQUIRES: none was added since they were put in order.
  std::pair<size_t, size_t> rows_of_shard(size_t shard) const {
    return {shard_bounds_[shard], shard_bounds_[shard + 1]};
  }
  // Reads the rows that were added, each tier's in one batch.
  // REQUIRES: a guard of the epochs was held since they were found, and is held on.
  void read(const TierStack& tiers);
  // The same for look-ups, and for rows that are to come up, but for rows in memory: those are read where they are by whoever
  // wants or moves them.
  void read_to_come_up(const TierStack& tiers, RowPart part = RowPart::kAll);
  // How many rows that reads, of the ones that were added.
  size_t rows_outside_memory(const TierStack& tiers) const;

  bool empty() const { return found_.empty(); }
  size_t size() const { return found_.size(); }
  const Found& found(size_t i) const { return found_[i]; }
  // The rows of tier t that were read, to be written elsewhere as they are.
  const RowBatch& rows_of(size_t t) const { return tiers_[t]; }

  // --- What was read. Of row i, REQUIRES: it was added to be read.
  // True if it's still where it was when it was read: what was read is the row then, unless is_damaged(i).
  // A change of a neighbour in the index makes this false too.
  // REQUIRES: the guard that was held when rows were found still is.
  bool holds(size_t i) const { return found_[i].hit.holds(); }
  // True if row i, which is at `now`, is still where it was when it was read. Needs no guard, and neighbours in
  // the index don't matter; but it's false too where the tier has used places again. Of a row in memory it doesn't say that
  // what was read is the row: that may have been changed where it is.
  bool holds_at(size_t i, RowRef now, const TierStack& tiers) const {
    const RowRef then = found_[i].hit.ref;
    return now == then && tiers.tier(then.tier()).reused_places() == reused_places_[then.tier()];
  }
  // True if the tier didn't give row i back as it was written. Says nothing of a row that isn't there any more.
  bool is_damaged(size_t i) const {
    return header(i).key != found_[i].key || rows_with(i).is_damaged(found_[i].row);
  }
  std::string damage(size_t i) const;
  // True if all of row i was read, and not its weights alone.
  bool is_whole(size_t i) const { return rows_with(i).are_whole(); }

  const RowHeader& header(size_t i) const { return rows_with(i).header(found_[i].row); }
  const float* row(size_t i) const { return rows_with(i).row(found_[i].row); }
  void prefetch(size_t i) const {
    prefetch_line(&header(i));
    prefetch_row(row(i), rows_with(i).row_floats());
  }

  size_t size_bytes() const;
  // All memory that is kept, whatever the size is.
  size_t memory_bytes() const;

  // --- What a serving look-up read, until its accesses are counted: all of its ids, where the row of each was seen (empty
  // for those that had none), and the stamp of its batch's first id; the others' follow. A tag is a position among the ids.
  PageVector<int64_t> ids;
  PageVector<RowRef> refs;
  uint64_t first_stamp = 0;
  // Where each of the ids occurs last in the batch, and how often: empty where each occurs once, and the batch has no others.
  PageVector<uint32_t> last_positions;
  PageVector<uint32_t> occurrences;
  ServedAccesses accesses(size_t i) const {
    if (last_positions.empty()) return {first_stamp + i, 1};
    return {first_stamp + last_positions[i], occurrences[i]};
  }
  // Has all accesses to a row that was found several times take the time of the last. Else one may bring the row to a tier between by
  // its own time while a later one, which is ranked without it, has the row wait for a higher tier; and files keep no times.
  void share_last_times();
  uint64_t access_count() const {
    return occurrences.empty() ? ids.size()
                               : std::accumulate(occurrences.begin(), occurrences.end(), uint64_t{0});
  }

 private:
  const RowBatch& rows_with(size_t i) const { return tiers_[found_[i].hit.ref.tier()]; }

  PageVector<Found> found_;
  ShardBounds shard_bounds_{};
  bool is_in_order_ = false;                                 // of the shards: what shard_bounds_ say holds
  std::vector<RowBatch> tiers_;                              // kMaxTiers of them
  std::array<uint64_t, RowRef::kMaxTiers> reused_places_{};  // of each tier, before rows were found
};

// One row of a batch in flight.
struct RowInFlight {
  const BatchInFlight* batch = nullptr;
  size_t i = 0;

  explicit operator bool() const { return batch != nullptr; }
};

}  // namespace embstore
