// The update of a large batch by several threads, each a share of it: all of them are prepared, and then committed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "update/batch_shares.h"
#include "update/batch_update.h"

namespace embstore {

class UpdateTogether final : public BatchUpdate {
 public:
  // Makes the update of a share; called by several threads at a time.
  using MakeUpdate = std::function<std::unique_ptr<BatchUpdate>(const GradientBatch& share)>;
  // `shares` outlives this, and what `make_update` refers to, too.
  UpdateTogether(BatchShares& shares, MakeUpdate make_update);

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  BatchShares& shares_;
  const MakeUpdate make_update_;
  std::vector<std::unique_ptr<BatchUpdate>> updates_;  // of each share
};

}  // namespace embstore
