#include "movement/staged_rows.h"

#include <algorithm>
#include <string>

#include "errors/error.h"

namespace embstore {

void StagedRows::start(const TierStack& tiers) {
  clear();
  for (size_t t = 0; t < tiers.size(); ++t) reused_places_[t] = tiers.tier(t).reused_places();
}

void StagedRows::read(const TierStack& tiers, RowPart part) {
  const auto lower = [](const Entry& a, const Entry& b) { return a.found.ref.tier() < b.found.ref.tier(); };
  if (!std::is_sorted(entries_.begin(), entries_.end(), lower)) {
    std::stable_sort(entries_.begin(), entries_.end(), lower);
  }
  const auto read_tier = [&](uint32_t t, RowBatch& rows) {
    if (part == RowPart::kAll) {
      tiers.tier(t).read(places_, rows);
    } else {
      tiers.tier(t).read_weights(places_, rows);
    }
  };
  rows_.resize(entries_.size());
  for (size_t first = 0; first < entries_.size();) {
    const uint32_t tier = entries_[first].found.ref.tier();
    size_t end = first;
    places_.clear();
    for (; end < entries_.size() && entries_[end].found.ref.tier() == tier; ++end) {
      places_.push_back({entries_[end].key, entries_[end].found.ref.slot()});
    }
    if (places_.size() == entries_.size()) {
      read_tier(tier, rows_);
      return;
    }
    read_tier(tier, tier_rows_);
    for (size_t i = first; i < end; ++i) {
      rows_.header(i) = tier_rows_.header(i - first);
      std::copy_n(tier_rows_.row(i - first), rows_.row_floats(), rows_.row(i));
    }
    first = end;
  }
}

bool StagedRows::holds(size_t i) const {
  if (!entries_[i].found.holds()) return false;
  check_key(i);
  return true;
}

bool StagedRows::holds_at(size_t i, RowRef now, const TierStack& tiers) const {
  const RowRef then = entries_[i].found.ref;
  if (now != then || tiers.tier(then.tier()).reused_places() != reused_places_[then.tier()]) {
    return false;
  }
  check_key(i);
  return true;
}

void StagedRows::check_key(size_t i) const {
  if (rows_.header(i).key == entries_[i].key) return;
  throw Error(ErrorKind::kStorage, "tier " + std::to_string(entries_[i].found.ref.tier()) +
                                       " lost the row of key " + std::to_string(entries_[i].key));
}

}  // namespace embstore
