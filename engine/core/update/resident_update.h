// An update of a table of one tier, whose rows never move.
#pragma once

#include <array>
#include <span>

#include "store/shard_save.h"
#include "store/transaction.h"
#include "update/batch_update.h"
#include "update/keys_without_row.h"

namespace embstore {

class Phase;

class ResidentUpdate final : public BatchUpdate {
 public:
  // `batch` outlives this. `counts_new_rows`: before room is reserved for them, so that no other share of the batch wants for it;
  // else as if every key were new, as long as there is so much room.
  ResidentUpdate(const UpdateParts& parts, const GradientBatch& batch, bool counts_new_rows);

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  // Keys of one shard that bring something new.
  struct NewKeys {
    uint64_t rows = 0;     // get a row: they have none, and the filter doesn't keep them waiting
    uint64_t unheard = 0;  // have no row, and the filter doesn't know them yet
  };
  // Stops where no more than `enough` rows can be new, of a shard without a filter: they may be fewer then.
  NewKeys count_new(const IndexShard& shard, int number, uint64_t enough) const REQUIRES(shard.mutex);
  uint64_t count_new_rows() const;
  void update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase)
      REQUIRES(shard.mutex);
  // The entries of a block's keys, in order; starts fetching their rows.
  void find_block(const IndexShard& shard, std::span<const KeyGradient> block,
                  std::span<IndexEntry, kKeysABlock> entries) const REQUIRES(shard.mutex);
  Slot next_slot();
  // Gives a key without a row one, if the filter admits it; empty where it waits. The filter counts the key later.
  IndexEntry admit(IndexShard& shard, int number, const KeyGradient& key, Phase& phase) REQUIRES(shard.mutex);

  const UpdateParts parts_;
  const GradientBatch& batch_;
  const bool counts_new_rows_;
  Transaction insertion_;
  SlotClaim claim_;
  std::array<IndexShard::Room, kShards> rooms_;
  ImageRoom image_room_;
  KeysWithoutRow uncounted_;  // of the shard that is updated
  // Slots that were taken together, since each taking locks; the last so many are left.
  std::array<Slot, kKeysABlock> taken_slots_;
  size_t left_slots_ = 0;
  uint64_t updated_rows_ = 0;
};

}  // namespace embstore
