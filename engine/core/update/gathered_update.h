// An update of a table of several tiers: its rows are gathered in the first, where they are pinned, and then updated
// all of them.
//
// What can fail comes first: rows below are read, room is claimed, rows come up, and those of new keys are put
// beside them, with their initial values. Nobody can tell: what rows are hasn't changed. From then on each key of the
// batch has its row in the first tier, and keeps it there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lookup/recent_reads.h"
#include "memory/page_vector.h"
#include "movement/mover.h"
#include "store/staged_rows.h"
#include "store/transaction.h"
#include "update/batch_update.h"

namespace embstore {

class Phase;

class GatheredUpdate final : public BatchUpdate {
 public:
  // All of these outlive this.
  GatheredUpdate(const UpdateParts& parts, const GradientBatch& batch, Mover& mover, RecentReads& reads);
  ~GatheredUpdate() override;

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  enum class Where : uint8_t {
    kAbsent,  // has no row, and is to have one
    kWaits,   // has no row, since the filter keeps it out
    kBelow,   // in a lower tier
    kSeated,  // in the first tier, and pinned
  };
  struct Seat {
    IndexEntry entry;  // of kSeated, as long as the shard has the layout that it was found in
    RowRef at;         // of kSeated and kBelow, where it was when it was found
    Where where = Where::kAbsent;
    bool is_new = false;  // had no row before
  };

  // Pins the rows that are in the first tier, and tells the others apart.
  void find_shard(IndexShard& shard, int number) REQUIRES(shard.mutex);
  // Reads the rows below, as far as no look-up has.
  void stage();
  // Brings those that were staged up, and puts those of new keys in. Returns how many weren't what was staged any more.
  size_t seat(SlotClaim& claim);
  // The same of one shard. Returns how many weren't.
  size_t seat_shard(IndexShard& shard, int number, SlotClaim& claim, Phase& phase) REQUIRES(shard.mutex);
  // Brings up the row of one key, if it's still the one that was staged; false where it isn't, or where a pool has no
  // place for it.
  bool bring_up(IndexShard& shard, size_t key, const IndexEntry& entry, Transaction& rise,
                FirstTierSlots& slots, Phase& phase) REQUIRES(shard.mutex);
  // Has what will be copied to the first tier fetched.
  void fetch_source(size_t key) const;
  void pin(size_t key, const IndexEntry& entry);
  // A place for each row that the pool has as it was, and that will change.
  bool claim_of_pool();
  // Entries that others' changes have made void.
  void find_again(const IndexShard& shard, int number) REQUIRES(shard.mutex);
  void update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase)
      REQUIRES(shard.mutex);
  void count_waiting(IndexShard& shard, int number, const UpdateTime& time) REQUIRES(shard.mutex);
  void undo_shard(IndexShard& shard, int number) REQUIRES(shard.mutex);

  size_t first_key(int number) const {
    return static_cast<size_t>(batch_.shard(number).data() - batch_.keys().data());
  }

  const UpdateParts parts_;
  const GradientBatch& batch_;
  Mover& mover_;
  RecentReads& reads_;
  MemoryTier& first_tier_;

  PageVector<Seat> seats_;                   // by key of the batch
  std::array<uint64_t, kShards> layouts_{};  // of the shards, when the seats' entries were found
  Transaction insertion_;
  PoolClaim pool_claim_;  // for rows of a pool that change by this
  uint64_t pool_claims_needed_ = 0;
  bool pool_is_full_ = false;  // for a row from below it
  std::array<IndexShard::Room, kShards> rooms_;
  bool is_committed_ = false;
  uint64_t updated_rows_ = 0;

  // What was read of the rows below: by this, and by the look-ups before.
  struct Copy {
    const StagedRows* rows = nullptr;
    size_t row = 0;
  };
  PageVector<Copy> copies_;  // by key; empty where no row is below
  std::vector<ServedBatch> earlier_reads_;
  std::vector<bool> is_read_of_use_;  // by number of earlier_reads_
  ServedBatch staged_;
  std::vector<float> floats_;  // of one row
  std::vector<int64_t> damaged_;
  std::string first_damage_;
};

}  // namespace embstore
