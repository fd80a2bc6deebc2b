#include "tiers/tier.h"

#include "access/tier_meter.h"
#include "errors/error.h"

namespace embstore {

Tier::Tier() : meter_(std::make_unique<TierMeter>()) {}

Tier::~Tier() = default;

void Tier::read_whole(std::span<const Place> places, RowPart part, RowBatch& rows) const {
  std::vector<DamagedRow> damaged;
  read_rows(places, part, rows, damaged);
  if (damaged.empty()) return;
  std::vector<int64_t> keys;
  for (const DamagedRow& row : damaged) keys.push_back(places[row.position].key);
  throw DamagedRowsError(std::move(keys), damaged.front().reason);
}

}  // namespace embstore
