// Removes the pool's copies of rows in a GPU's memory before a step changes these rows.
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
  // `marked`: the slots of the rows. REQUIRES: the rows stay in these slots, and no other thread changes
  // them.
  DeviceChanges(RowStore& store, std::span<const Slot> marked);

  // Passes one of `places` on to each row whose copy goes. REQUIRES: `places` has as many as there are rows.
  void commit(PoolClaim& places) noexcept;

 private:
  struct Row {
    int64_t key;
    Slot slot;
  };

  RowStore& store_;
  std::vector<Row> rows_;  // ordered by shard
};

}  // namespace embstore
