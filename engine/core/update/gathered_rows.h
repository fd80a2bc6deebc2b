// The rows of a batch of keys, gathered in the first tier of several, where they are pinned; but for rows of lower tiers of memory,
// which may be updated where they are.
//
// What can fail comes first: rows below are read, room is claimed, rows come up, and those of new keys are put
// beside them, with their initial values. Nobody can tell: what rows are hasn't changed. From then on each key of the
// batch has its row in the first tier, and keeps it there, or in some tier of memory.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "lookup/recent_reads.h"
#include "memory/page_vector.h"
#include "movement/mover.h"
#include "store/shard_save.h"
#include "store/transaction.h"
#include "update/batch_update.h"
#include "update/step_claims.h"

namespace embstore {

class Phase;
class Rise;

class GatheredRows {
 public:
  static constexpr size_t kKeysFetchedAhead = 12;

  enum class Where : uint8_t {
    kAbsent,   // has no row, and is to have one
    kWaits,    // has no row, since the filter keeps it out
    kBelow,    // in a lower tier, and is to come up
    kResting,  // in a lower tier of memory; until it's updated it may move to another
    kSeated,   // in the first tier, and pinned
  };
  struct Seat {
    IndexEntry entry;  // of kSeated, as long as the shard has the layout that it was found in
    RowRef at;         // of all but kAbsent and kWaits, where it was when it was found
    Where where = Where::kAbsent;
    bool is_new = false;     // had no row before, or one that no update has seen
    bool is_pinned = false;  // wherever it is

    bool is_seated() const { return where == Where::kSeated; }
    bool is_updated() const { return is_seated() || where == Where::kResting; }
  };

  // All of these outlive this.
  // `claims`: what was claimed beforehand, for as many rows as the batch has keys, by a step on the device, while which no row moves;
  // null: the mover makes room.
  GatheredRows(const UpdateParts& parts, const GradientBatch& batch, Mover& mover, TakenReads& reads,
               StepClaims* claims);
  // Unpins the rows and takes the new ones away, unless they were updated.
  ~GatheredRows();
  GatheredRows(const GatheredRows&) = delete;
  GatheredRows& operator=(const GatheredRows&) = delete;

  // As BatchUpdate::prepare().
  bool gather(uint64_t& new_rows);

  // --- Once they are gathered.
  std::span<const Seat> seats(int number) const {
    return std::span(seats_).subspan(first_key(number), batch_.shard(number).size());
  }
  // Finds rows that another batch gave keys which were to wait, and which rest from now on.
  void find_rows_of_waiting_keys(const IndexShard& shard, int number) REQUIRES(shard.mutex);
  // Finds entries anew that others' changes have made void, and rows that rested and may have moved.
  void find_moved_entries(const IndexShard& shard, int number) REQUIRES(shard.mutex);
  // A place for each row that the pool has as it was, and that will change.
  PoolClaim& change_claim() { return change_claim_; }
  // The row, which rested, was updated where it is, and has so many accesses: some may have been counted since it was found to stay
  // outranked.
  void was_updated(RowRef at, int64_t key, uint64_t count);
  // The rows were updated, and unpinned.
  void were_updated();

 private:
  void find();
  // Whether the row is outranked by all above when it's updated, too.
  bool stays_outranked(size_t key) const;
  // The row came with another batch, which may yet take it back.
  bool is_unborn(RowRef at) const {
    return at.tier() == 0 && first_tier_.ranks().pins(at.slot()) != 0 &&
           first_tier_.rows().meta(at.slot()).version == RowMeta::kNeverUpdated;
  }
  // What a key without a row is to have, by the filter.
  Where where_by(const AdmissionFilter& filter, const KeyGradient& key, uint64_t& unheard);
  // Pins the rows that are in the first tier, and tells the others apart.
  void find_shard(IndexShard& shard, int number, Phase& phase) REQUIRES(shard.mutex);
  void pin(size_t key, const IndexEntry& entry);
  // Has a row of a lower tier stay there.
  void rest(size_t key, Phase& phase);
  // Reads the rows below, as far as no look-up has.
  void stage();
  // Brings those that were read up, and puts those of new keys in. Returns how many weren't what was read any more.
  size_t seat(SlotClaim& claim);
  // The same of one shard. Returns how many weren't.
  size_t seat_shard(IndexShard& shard, int number, SlotClaim& claim, Phase& phase) REQUIRES(shard.mutex);
  // Brings up the row of one key; false where it stays below.
  bool bring_up(IndexShard& shard, size_t key, const IndexEntry& entry, Rise& rise) REQUIRES(shard.mutex);
  void undo_shard(IndexShard& shard, int number) REQUIRES(shard.mutex);

  size_t first_key(int number) const {
    return static_cast<size_t>(batch_.shard(number).data() - batch_.keys().data());
  }
  PoolClaim* places_claimed() const { return claims_ != nullptr ? &claims_->places : nullptr; }
  RowInFlight copy_of(size_t key) const { return copies_.empty() ? RowInFlight{} : copies_[key]; }

  const UpdateParts parts_;
  const GradientBatch& batch_;
  Mover& mover_;
  StepClaims* const claims_;
  MemoryTier& first_tier_;
  std::array<bool, RowRef::kMaxTiers> may_rest_{};  // in each tier

  PageVector<Seat> seats_;                   // by key of the batch
  std::array<uint64_t, kShards> layouts_{};  // of the shards, when the seats' entries were found
  Transaction insertion_;
  PoolClaim change_claim_;
  bool pool_is_full_ = false;  // for a row from below it
  std::array<IndexShard::Room, kShards> rooms_;
  ImageRoom image_room_;
  size_t resting_ = 0;
  size_t waiting_ = 0;                      // keys
  std::list<PageVector<RowToCome>> risen_;  // one that has room for all that rest, or may
  bool were_updated_ = false;

  TakenReads& reads_;
  BatchPtr staged_;                 // rows that no look-up had read; null where no row is below
  PageVector<RowInFlight> copies_;  // of the rows below, by key; empty where no row is below
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

}  // namespace embstore
