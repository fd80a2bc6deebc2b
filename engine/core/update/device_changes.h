// Rows in a GPU's memory that a step is about to change there: their copies in the pool go, before the step changes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_vector.h"
#include "row/place.h"
#include "store/row_store.h"

namespace embstore {

class DeviceChanges {
 public:
  // `marked`: the slots of such rows, as the step says. REQUIRES: they stay there, and nobody else changes them.
  DeviceChanges(RowStore& store, std::span<const Slot> marked);

  // Each row owns one of `places` from now on. REQUIRES: there are as many.
  void commit(PoolClaim& places) noexcept;

 private:
  struct Row {
    int64_t key;
    Slot slot;
  };

  RowStore& store_;
  std::vector<Row> rows_;  // in the order of their shards
};

}  // namespace embstore
