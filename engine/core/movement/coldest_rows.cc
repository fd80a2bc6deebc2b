#include "movement/coldest_rows.h"

#include <algorithm>

namespace embstore {
namespace {

// A scan's work is spread over as many rows as it finds.
constexpr uint64_t kSlotsARow = 8;
constexpr uint64_t kLeastRowsAScan = 256;
constexpr size_t kLatePart = 8;  // of a scan's rows, that came since, are sorted in

constexpr size_t kAhead = 16;  // rows between fetching a rank and reading it

constexpr auto kColder = [](const MemoryTier::Candidate& a, const MemoryTier::Candidate& b) {
  return a.rank < b.rank;
};
// For heaps with the coldest on top.
constexpr auto kHotter = [](const MemoryTier::Candidate& a, const MemoryTier::Candidate& b) {
  return a.rank > b.rank;
};

}  // namespace

ColdestRows::ColdestRows(MemoryTier& tier, CacheStrategy strategy)
    : tier_(tier),
      strategy_(strategy),
      rows_a_scan_(std::max(tier.slot_count() / kSlotsARow, kLeastRowsAScan)),
      limit_(Rank::highest()),
      is_given_(tier.slot_count()) {
  tier_.note_arrivals();
}

void ColdestRows::keep(const Candidate& row) {
  if (row.rank > limit_) return;
  late_.push_back(row);
  std::push_heap(late_.begin(), late_.end(), kHotter);
  if (late_.size() > rows_a_scan_ / kLatePart) sort_late();
}

// A large heap costs a cache miss a level.
void ColdestRows::sort_late() {
  sorted_.erase(sorted_.begin(), sorted_.begin() + static_cast<ptrdiff_t>(next_sorted_));
  next_sorted_ = 0;
  const auto before = static_cast<ptrdiff_t>(sorted_.size());
  std::sort(late_.begin(), late_.end(), kColder);
  sorted_.insert(sorted_.end(), late_.begin(), late_.end());
  std::inplace_merge(sorted_.begin(), sorted_.begin() + before, sorted_.end(), kColder);
  late_.clear();
  if (sorted_.size() <= 2 * rows_a_scan_) return;
  sorted_.resize(2 * rows_a_scan_);
  limit_ = sorted_.back().rank;
}

void ColdestRows::keep_given() {
  for (const Candidate& given : given_) {
    if (!is_given_[given.slot]) continue;
    is_given_[given.slot] = false;
    if (tier_.is_filled(given.slot)) keep({tier_.rank(given.slot, strategy_), given.slot});
  }
  given_.clear();
}

void ColdestRows::add_arrivals() {
  tier_.take_arrivals(arrivals_);
  size_t unfilled = 0;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (i + kAhead < arrivals_.size()) tier_.prefetch_rank(arrivals_[i + kAhead]);
    const Slot slot = arrivals_[i];
    if (tier_.is_filled(slot)) {
      keep({tier_.rank(slot, strategy_), slot});
    } else {
      arrivals_[unfilled++] = slot;
    }
  }
  arrivals_.resize(unfilled);
}

void ColdestRows::scan() {
  // Before, so that none is missed; one that is found twice does no harm.
  tier_.take_arrivals(arrivals_);
  limit_ = tier_.coldest(rows_a_scan_, strategy_, sorted_);
  next_sorted_ = 0;
  std::sort(sorted_.begin(), sorted_.end(), kColder);
}

bool ColdestRows::take_coldest(Candidate& row) {
  const bool any_sorted = next_sorted_ < sorted_.size();
  if (!late_.empty() && (!any_sorted || late_.front().rank < sorted_[next_sorted_].rank)) {
    std::pop_heap(late_.begin(), late_.end(), kHotter);
    row = late_.back();
    late_.pop_back();
    return true;
  }
  if (!any_sorted) return false;
  row = sorted_[next_sorted_++];
  if (next_sorted_ + kAhead < sorted_.size()) {
    tier_.prefetch_rank(sorted_[next_sorted_ + kAhead].slot);
  }
  return true;
}

const std::vector<MemoryTier::Candidate>& ColdestRows::next(uint64_t count) {
  keep_given();
  add_arrivals();
  bool scanned = false;
  while (given_.size() < count) {
    Candidate row;
    if (!take_coldest(row)) {
      if (!given_.empty() || scanned) break;
      scan();
      scanned = true;
      continue;
    }
    if (!tier_.is_filled(row.slot)) continue;
    // Whichever row fills the slot now.
    const Rank rank = tier_.rank(row.slot, strategy_);
    if (rank != row.rank) {
      keep({rank, row.slot});
    } else if (!is_given_[row.slot]) {
      // Else it is one that a scan found as it arrived, or whose slot was filled again.
      is_given_[row.slot] = true;
      given_.push_back(row);
    }
  }
  return given_;
}

}  // namespace embstore
