// Gathers the rows of a batch of keys in the first tier and pins them there. Rows in lower tiers of memory
// may instead stay, and be updated where they are ("resting").
//
// All that can fail is done first: reading rows below, claiming room, bringing rows up, and adding rows with
// initial values for new keys. No reader notices this, since no row has changed its values yet. From then on
// each row of the batch stays in the first tier, or in a tier of memory if it rests.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "lookup/read_cache.h"
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

  enum class State : uint8_t {
    kAbsent,       // has no row, and will get one
    kWaits,        // has no row, since the filter denies it one
    kBelow,        // in a lower tier, and will come up
    kResting,      // in a lower tier of memory, to be updated there; it may still move to another such tier
    kInFirstTier,  // pinned in the first tier
  };
  struct Row {
    IndexEntry entry;  // for kInFirstTier: valid while the shard keeps its layout
    RowRef at;         // where the row was found; for kAbsent and kWaits empty
    State state = State::kAbsent;
    bool is_new = false;     // the key had no row, or one that was never updated
    bool is_pinned = false;  // in whichever tier

    bool is_in_first_tier() const { return state == State::kInFirstTier; }
    bool is_updated() const { return is_in_first_tier() || state == State::kResting; }
  };

  // All arguments outlive this object. `claims`: slots and places for as many rows as the batch has keys,
  // claimed beforehand by a step on the device, during which no row moves; null: the mover makes room.
  GatheredRows(const UpdateParts& parts, const GradientBatch& batch, Mover& mover, UpdateReads& reads,
               StepClaims* claims);
  // Unpins the rows and removes new ones, unless commit() was called.
  ~GatheredRows();
  GatheredRows(const GatheredRows&) = delete;
  GatheredRows& operator=(const GatheredRows&) = delete;

  // See BatchUpdate::prepare().
  bool gather(uint64_t& new_rows);

  // --- After gather().
  std::span<const Row> rows(int number) const {
    return std::span(rows_).subspan(first_key(number), batch_.shard(number).size());
  }
  // Finds waiting keys to which another batch has given a row meanwhile; these rows now rest.
  void find_rows_of_waiting_keys(const IndexShard& shard, int number) REQUIRES(shard.mutex);
  // Finds entries again if the shard's layout has changed, and resting rows, which may have moved.
  void find_moved_entries(const IndexShard& shard, int number) REQUIRES(shard.mutex);
  // A place in the pool for each row that will no longer equal its copy there.
  PoolClaim& change_claim() { return change_claim_; }
  // Notes that a resting row was updated and now has `count` accesses. It comes up later if others no longer
  // outrank it: accesses may have been counted since it was found.
  void note_updated(RowRef at, int64_t key, uint64_t count);
  // Notes that all rows were updated and unpinned.
  void commit();

 private:
  void find();
  // Returns whether all rows above will outrank the row even after its update.
  bool stays_outranked(size_t key) const;
  // Returns whether another batch in flight has added the row, and may yet remove it.
  bool is_provisional(RowRef at) const {
    return at.tier() == 0 && first_tier_.ranks().pins(at.slot()) != 0 &&
           first_tier_.rows().meta(at.slot()).version == RowMeta::kNeverUpdated;
  }
  // Returns kAbsent or kWaits, as the filter decides for a key without a row.
  State state_by(const AdmissionFilter& filter, const KeyGradient& key, uint64_t& unknown_keys);
  // Finds the shard's rows, pins those in the first tier, and sorts out the others.
  void find_shard(IndexShard& shard, int number, Phase& phase) REQUIRES(shard.mutex);
  void pin(size_t key, const IndexEntry& entry);
  // Lets a row of a lower tier of memory rest there.
  void rest(size_t key, Phase& phase);
  // Reads the rows below that no look-up has read.
  void stage();
  // Brings up the rows that were read, and adds rows for new keys. Returns the number of rows that changed
  // after they were read.
  size_t place_rows(SlotClaim& claim);
  // Does the same for one shard.
  size_t place_shard(IndexShard& shard, int number, SlotClaim& claim, Phase& phase) REQUIRES(shard.mutex);
  // Brings up the row of one key. Returns false if the row stays below.
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

  PageVector<Row> rows_;                     // one for each key of the batch
  std::array<uint64_t, kShards> layouts_{};  // the shards' layouts when the entries were found
  Transaction insertion_;
  PoolClaim change_claim_;
  bool pool_is_full_ = false;  // it had no place for a row from below it
  std::array<IndexShard::Room, kShards> rooms_;
  ImageRoom image_room_;
  size_t resting_ = 0;
  size_t waiting_ = 0;  // number of keys
  std::list<PageVector<RowToRaise>>
      to_raise_;  // one vector, with room for all rows that rest or may rest later
  bool is_committed_ = false;

  UpdateReads& reads_;
  BatchPtr staged_;                 // rows below that no look-up had read; null if no row is below
  PageVector<RowInFlight> copies_;  // the rows below, by key; empty if no row is below
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

}  // namespace embstore
