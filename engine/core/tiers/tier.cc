#include "tiers/tier.h"

#include "access/tier_meter.h"
#include "errors/error.h"

namespace embstore {

Tier::Tier() : meter_(std::make_unique<TierMeter>()) {}

Tier::~Tier() = default;

void Tier::read(std::span<const Place> places, RowBatch& rows, RowPart part) const {
  rows.set_places(places);
  read_rows(rows, part);
  if (rows.damaged().empty()) return;
  std::vector<int64_t> keys;
  for (const auto& [position, reason] : rows.damaged()) keys.push_back(places[position].key);
  throw DamagedRowsError(std::move(keys), rows.damaged().begin()->second);
}

}  // namespace embstore
