#include "store/batch_in_flight.h"

#include <algorithm>

#include "row/unique_ids.h"

namespace embstore {

BatchInFlight::BatchInFlight(const RowLayout& layout) : tiers_(RowRef::kMaxTiers, RowBatch(layout)) {}

void BatchInFlight::clear() {
  ids.clear();
  refs.clear();
  last_positions.clear();
  occurrences.clear();
  first_stamp = 0;
  found_.clear();
  is_in_order_ = false;
  for (RowBatch& rows : tiers_) rows.clear();
}

void BatchInFlight::start(const TierStack& tiers) {
  clear();
  for (size_t t = 0; t < tiers.size(); ++t) reused_places_[t] = tiers.tier(t).reused_places();
}

void BatchInFlight::order_by_shards() {
  if (is_in_order_) return;
  const PageVector<uint32_t> order =
      in_order_of_shards(found_.size(), [this](size_t number) { return found_[number].key; }, &shard_bounds_);
  if (!std::is_sorted(order.begin(), order.end())) {
    PageVector<Found> ordered;
    ordered.reserve(found_.size());
    for (const uint32_t i : order) ordered.push_back(found_[i]);
    found_.swap(ordered);
  }
  is_in_order_ = true;
}

void BatchInFlight::share_last_times() {
  if (!last_positions.empty()) return;
  std::vector<int64_t> keys(found_.size());
  std::transform(found_.begin(), found_.end(), keys.begin(), [](const Found& found) { return found.key; });
  const UniqueIds unique(keys);
  if (unique.keys.size() == keys.size()) return;
  std::vector<uint64_t> last(unique.keys.size());  // tags
  for (size_t i = 0; i < keys.size(); ++i) {
    uint64_t& tag = last[unique.positions[i]];
    tag = std::max(tag, found_[i].tag);
  }
  last_positions.resize(ids.size());
  std::iota(last_positions.begin(), last_positions.end(), 0);
  for (size_t i = 0; i < keys.size(); ++i)
    last_positions[found_[i].tag] = static_cast<uint32_t>(last[unique.positions[i]]);
  occurrences.assign(ids.size(), 1);
}

void BatchInFlight::read(const TierStack& tiers) {
  for (size_t t = 0; t < tiers.size(); ++t) {
    if (!tiers_[t].places().empty()) tiers.tier(t).read_rows(tiers_[t], RowPart::kAll);
  }
}

void BatchInFlight::read_to_raise(const TierStack& tiers, RowPart part) {
  for (size_t t = 0; t < tiers.size(); ++t) {
    if (tiers.memory(t) == nullptr && !tiers_[t].places().empty()) tiers.tier(t).read_rows(tiers_[t], part);
  }
}

size_t BatchInFlight::rows_outside_memory(const TierStack& tiers) const {
  size_t rows = 0;
  for (size_t t = 0; t < tiers.size(); ++t) {
    if (tiers.memory(t) == nullptr) rows += tiers_[t].places().size();
  }
  return rows;
}

std::string BatchInFlight::damage(size_t i) const {
  const auto damaged = rows_with(i).damaged().find(found_[i].row);
  if (damaged != rows_with(i).damaged().end()) return damaged->second;
  return "tier " + std::to_string(found_[i].hit.ref.tier()) + " lost it";
}

size_t BatchInFlight::size_bytes() const {
  size_t bytes = ids.size() * sizeof(ids[0]) + refs.size() * sizeof(refs[0]) +
                 (last_positions.size() + occurrences.size()) * sizeof(occurrences[0]) +
                 found_.size() * sizeof(Found);
  for (const RowBatch& rows : tiers_) bytes += rows.size_bytes();
  return bytes;
}

size_t BatchInFlight::memory_bytes() const {
  size_t bytes = ids.capacity() * sizeof(ids[0]) + refs.capacity() * sizeof(refs[0]) +
                 (last_positions.capacity() + occurrences.capacity()) * sizeof(occurrences[0]) +
                 found_.capacity() * sizeof(Found);
  for (const RowBatch& rows : tiers_) bytes += rows.memory_bytes();
  return bytes;
}

}  // namespace embstore
