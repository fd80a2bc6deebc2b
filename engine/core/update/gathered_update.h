// The update of a table with several tiers: gathers the batch's rows (GatheredRows), then updates them.
#pragma once

#include <array>
#include <cstdint>

#include "update/batch_update.h"
#include "update/gathered_rows.h"
#include "update/keys_without_row.h"

namespace embstore {

class GatheredUpdate final : public BatchUpdate {
 public:
  // All arguments outlive this object. `claims`: see GatheredRows.
  GatheredUpdate(const UpdateParts& parts, const GradientBatch& batch, Mover& mover, UpdateReads& reads,
                 StepClaims* claims = nullptr);

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  void update_shard(IndexShard& shard, int number, const UpdateTime& time, Phase& phase)
      REQUIRES(shard.mutex);
  // REQUIRES: the shard's mutex.
  void count_keys_without_row(int number, const UpdateTime& time);

  const UpdateParts parts_;
  const GradientBatch& batch_;
  GatheredRows gathered_;
  KeysWithoutRow uncounted_;                                // of the shard that is being updated
  std::array<uint64_t, RowRef::kMaxTiers> updated_rows_{};  // by tier
};

}  // namespace embstore
