#include "store/staged_rows.h"

#include <algorithm>

namespace embstore {

void StagedRows::start(const TierStack& tiers) {
  clear();
  for (size_t t = 0; t < tiers.size(); ++t) reused_places_[t] = tiers.tier(t).reused_places();
}

void StagedRows::read(const TierStack& tiers, RowPart part) {
  const auto is_higher = [](const Wanted& a, const Wanted& b) { return a.hit.ref.tier() < b.hit.ref.tier(); };
  if (!std::is_sorted(wanted_.begin(), wanted_.end(), is_higher)) {
    std::stable_sort(wanted_.begin(), wanted_.end(), is_higher);
  }
  damaged_.clear();
  rows_.resize(wanted_.size());
  for (size_t first = 0; first < wanted_.size();) {
    const uint32_t tier = wanted_[first].hit.ref.tier();
    size_t end = first;
    places_.clear();
    for (; end < wanted_.size() && wanted_[end].hit.ref.tier() == tier; ++end) {
      places_.push_back({wanted_[end].key, wanted_[end].hit.ref.slot()});
    }
    const size_t damaged_before = damaged_.size();
    if (places_.size() == wanted_.size()) {
      tiers.tier(tier).read_rows(places_, part, rows_, damaged_);
      break;
    }
    tiers.tier(tier).read_rows(places_, part, tier_rows_, damaged_);
    for (size_t d = damaged_before; d < damaged_.size(); ++d) damaged_[d].position += first;
    for (size_t i = first; i < end; ++i) {
      rows_.header(i) = tier_rows_.header(i - first);
      std::copy_n(tier_rows_.row(i - first), rows_.row_floats(), rows_.row(i));
    }
    first = end;
  }
  std::sort(damaged_.begin(), damaged_.end(),
            [](const DamagedRow& a, const DamagedRow& b) { return a.position < b.position; });
}

const DamagedRow* StagedRows::damaged_at(size_t i) const {
  const auto at =
      std::lower_bound(damaged_.begin(), damaged_.end(), i,
                       [](const DamagedRow& row, size_t position) { return row.position < position; });
  return at != damaged_.end() && at->position == i ? &*at : nullptr;
}

std::string StagedRows::damage(size_t i) const {
  const DamagedRow* const damaged = damaged_at(i);
  if (damaged != nullptr) return damaged->reason;
  return "tier " + std::to_string(wanted_[i].hit.ref.tier()) + " lost it";
}

}  // namespace embstore
