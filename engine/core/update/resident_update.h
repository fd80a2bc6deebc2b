// The update of a table with one tier, whose rows never move.
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
  // `batch` outlives this object. `counts_new_rows`: reserve room only for keys that are new, so that the
  // other shares of a batch find room, too. Otherwise room is reserved as if every key were new, unless there
  // is too little.
  ResidentUpdate(const UpdateParts& parts, const GradientBatch& batch, bool counts_new_rows);

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  // The keys of one shard that need room.
  struct NewKeys {
    uint64_t rows = 0;          // keys that get a row: they have none, and the filter admits them
    uint64_t unknown_keys = 0;  // keys without a row that the filter doesn't know yet
  };
  // For a shard without a filter, stops as soon as at most `enough` keys can be new, and returns that bound.
  NewKeys count_new(const IndexShard& shard, int number, uint64_t enough) const REQUIRES(shard.mutex);
  uint64_t count_new_rows() const;
  void update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase)
      REQUIRES(shard.mutex);
  // Finds the entries of a block's keys, and prefetches their rows.
  void find_block(const IndexShard& shard, std::span<const KeyGradient> block,
                  std::span<IndexEntry, kKeysABlock> entries) const REQUIRES(shard.mutex);
  Slot next_slot();
  // Adds a row for a key without one and returns its entry, or an empty entry if the filter denies it. The
  // filter counts the key later.
  IndexEntry admit(IndexShard& shard, int number, const KeyGradient& key, Phase& phase) REQUIRES(shard.mutex);

  const UpdateParts parts_;
  const GradientBatch& batch_;
  const bool counts_new_rows_;
  Transaction insertion_;
  SlotClaim claim_;
  std::array<IndexShard::Room, kShards> rooms_;
  ImageRoom image_room_;
  KeysWithoutRow uncounted_;  // of the shard that is being updated
  // Slots are taken in groups, since each taking locks a mutex. The last left_slots_ of them are unused.
  std::array<Slot, kKeysABlock> taken_slots_;
  size_t left_slots_ = 0;
  uint64_t updated_rows_ = 0;
};

}  // namespace embstore
