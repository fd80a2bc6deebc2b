// Updates the index for rows that the last tier moves on its own, in compaction.
#pragma once

#include <span>

#include "store/row_store.h"
#include "tiers/tier.h"

namespace embstore {

class RowRelocator final : public Relocator {
 public:
  explicit RowRelocator(RowStore& store) : store_(store) {}
  void relocate(std::span<Relocation> rows) override;

 private:
  RowStore& store_;
};

}  // namespace embstore
