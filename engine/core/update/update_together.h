// The update of a large batch by several threads, a share each: all shares are prepared, then all are
// committed.
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
  // Makes the update of a share. Several threads call it at a time.
  using MakeUpdate = std::function<std::unique_ptr<BatchUpdate>(const GradientBatch& share)>;
  // `shares` and everything that `make_update` refers to outlive this object.
  UpdateTogether(BatchShares& shares, MakeUpdate make_update);

  bool prepare(uint64_t& new_rows) override;
  void commit(const UpdateTime& time) noexcept override;

 private:
  BatchShares& shares_;
  const MakeUpdate make_update_;
  std::vector<std::unique_ptr<BatchUpdate>> updates_;  // one for each share
};

}  // namespace embstore
