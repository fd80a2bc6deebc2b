#include "store/tier_stack.h"

namespace embstore {

uint32_t TierStack::durable_tier(size_t n) const {
  uint32_t t = 0;
  while (made_.tiers[t].durable == nullptr || n-- > 0) ++t;
  return t;
}

bool TierStack::host_rows_are_in_memory() const {
  for (size_t t = 0; t < size(); ++t) {
    const bool is_hbm = hbm() != nullptr && t == tier_of_level(0);
    if (memory(t) == nullptr && !is_hbm) return false;
  }
  return true;
}

void TierStack::start_compaction(Relocator& relocator) {
  for (size_t t = 1; t < size(); ++t) tier(t).start_compaction(relocator);
}

void TierStack::compact() {
  for (size_t t = 1; t < size(); ++t) tier(t).compact();
}

void TierStack::drain() {
  for (size_t t = 1; t < size(); ++t) tier(t).drain();
}

void TierStack::close() {
  if (checkpoints() != nullptr) checkpoints()->drop_pending();
  for (const MadeTier& level : made_.tiers) level.tier->close();
}

uint64_t TierStack::total_capacity_rows() const {
  uint64_t total = 0;
  for (const MadeTier& level : made_.tiers) {
    if (level.capacity_rows == kUnlimitedRows) return kUnlimitedRows;
    total += level.capacity_rows;
  }
  return total;
}

}  // namespace embstore
