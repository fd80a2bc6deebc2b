#include "movement/coldest_rows.h"

#include <algorithm>
#include <limits>

namespace embstore {
namespace {

// A scan's work is spread over as many rows as it finds.
constexpr uint64_t kSlotsARow = 8;
constexpr uint64_t kLeastRowsAScan = 256;

constexpr size_t kAhead = 16;  // rows between fetching a rank and reading it

constexpr Rank kHighest{std::numeric_limits<uint64_t>::max(), std::numeric_limits<uint64_t>::max()};

// For heaps with the coldest on top.
constexpr auto kHotter = [](const MemoryTier::Candidate& a, const MemoryTier::Candidate& b) {
  return a.rank > b.rank;
};

}  // namespace

ColdestRows::ColdestRows(MemoryTier& tier, CacheStrategy strategy)
    : tier_(tier),
      strategy_(strategy),
      rows_a_scan_(std::max(tier.slot_count() / kSlotsARow, kLeastRowsAScan)),
      limit_(kHighest),
      is_given_(tier.slot_count()) {
  tier_.note_arrivals();
}

bool ColdestRows::refresh(Candidate& row) const {
  if (tier_.key(row.place.slot) != row.place.key || !tier_.is_filled(row.place.slot)) return false;
  row.rank = tier_.rank(row.place.slot, strategy_);
  return true;
}

void ColdestRows::keep(const Candidate& row) {
  if (row.rank > limit_) return;
  heap_.push_back(row);
  std::push_heap(heap_.begin(), heap_.end(), kHotter);
}

void ColdestRows::add_arrivals() {
  tier_.take_arrivals(arrivals_);
  size_t unfilled = 0;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (i + kAhead < arrivals_.size()) tier_.prefetch_rank(arrivals_[i + kAhead]);
    const Slot slot = arrivals_[i];
    if (tier_.is_filled(slot)) {
      keep({tier_.rank(slot, strategy_), {tier_.key(slot), slot}});
    } else {
      arrivals_[unfilled++] = slot;
    }
  }
  arrivals_.resize(unfilled);
}

void ColdestRows::scan() {
  // Before, so that none is missed; one that is found twice does no harm.
  tier_.take_arrivals(arrivals_);
  heap_ = tier_.coldest(rows_a_scan_, strategy_);
  limit_ = kHighest;
  if (heap_.size() == rows_a_scan_) {
    limit_ = std::max_element(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
               return a.rank < b.rank;
             })->rank;
  }
  std::make_heap(heap_.begin(), heap_.end(), kHotter);
}

std::vector<MemoryTier::Candidate> ColdestRows::next(uint64_t count) {
  for (size_t i = 0; i < given_.size(); ++i) {
    if (i + kAhead < given_.size()) tier_.prefetch_rank(given_[i + kAhead].place.slot);
    is_given_[given_[i].place.slot] = false;
    if (refresh(given_[i])) keep(given_[i]);
  }
  given_.clear();
  add_arrivals();
  bool scanned = false;
  while (given_.size() < count) {
    if (heap_.empty()) {
      if (!given_.empty() || scanned) break;
      scan();
      scanned = true;
      continue;
    }
    std::pop_heap(heap_.begin(), heap_.end(), kHotter);
    Candidate row = heap_.back();
    heap_.pop_back();
    // Among these are the next few.
    for (size_t i = 1; i < std::min<size_t>(heap_.size(), 7); ++i) {
      tier_.prefetch_rank(heap_[i].place.slot);
    }
    const Rank before = row.rank;
    if (!refresh(row)) continue;
    if (row.rank != before) {
      keep(row);
    } else if (!is_given_[row.place.slot]) {
      // Else it is a row that a scan found as it arrived, or that came back to its slot.
      is_given_[row.place.slot] = true;
      given_.push_back(row);
    }
  }
  return given_;
}

}  // namespace embstore
