#include "movement/coldest_rows.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace embstore {
namespace {

// The number of slots for each row that a scan keeps: the work of a scan is spread over these rows. A scan
// keeps fewer rows of a tier that rows only pass through, since each takes 24 bytes.
uint64_t slots_a_row(const RankedTier& tier) { return tier.is_first() ? 8 : 32; }
constexpr uint64_t kMinRowsAScan = 256;
constexpr size_t kLatePart = 8;  // late rows are sorted in when they are more than this part of a scan's rows

constexpr size_t kSlotsFetchedAhead = 16;
constexpr uint64_t kSlotsScannedAhead = 128;

// The fewest ranks that a device is asked for at once.
constexpr uint64_t kMinRefreshed = 256;

constexpr auto kColder = [](const ColdestRows::Candidate& a, const ColdestRows::Candidate& b) {
  return a.rank < b.rank;
};
// For heaps with the coldest on top.
constexpr auto kHotter = [](const ColdestRows::Candidate& a, const ColdestRows::Candidate& b) {
  return a.rank > b.rank;
};

}  // namespace

ColdestRows::ColdestRows(RankedTier& tier, CacheStrategy strategy, const PrefetchedRows* prefetched)
    : tier_(tier),
      ranks_(tier.ranks()),
      strategy_(strategy),
      prefetched_(prefetched),
      limit_(Rank::highest()),
      is_given_(tier.max_slots()),
      is_current_(tier.max_slots()) {}

// Counts the slots that there are now: large batches may have added many times those that the tier was made
// with.
uint64_t ColdestRows::rows_a_scan() const {
  return std::max(tier_.slot_count() / slots_a_row(tier_), kMinRowsAScan);
}

void ColdestRows::keep(const Candidate& row) {
  if (row.rank > limit_) return;
  late_.push_back(row);
  std::push_heap(late_.begin(), late_.end(), kHotter);
  if (late_.size() > rows_a_scan() / kLatePart) sort_late();
}

// Keeps the heap small, since a large one costs a cache miss per level.
void ColdestRows::sort_late() {
  sorted_.erase(sorted_.begin(), sorted_.begin() + static_cast<ptrdiff_t>(next_sorted_));
  next_sorted_ = 0;
  const auto before = static_cast<ptrdiff_t>(sorted_.size());
  std::sort(late_.begin(), late_.end(), kColder);
  sorted_.insert(sorted_.end(), late_.begin(), late_.end());
  std::inplace_merge(sorted_.begin(), sorted_.begin() + before, sorted_.end(), kColder);
  late_.clear();
  const size_t max_rows = 2 * rows_a_scan() + given_.size();
  if (sorted_.size() <= max_rows) return;
  sorted_.resize(max_rows);
  limit_ = sorted_.back().rank;
}

void ColdestRows::release(Slot slot) {
  if (is_filled(slot)) keep({rank_of(slot), slot});
}

void ColdestRows::keep_given() {
  for (const Candidate& given : given_) {
    if (!is_given_.contains(given.slot)) continue;
    is_given_.remove(given.slot);
    if (is_filled(given.slot)) keep({rank_of(given.slot), given.slot});
  }
  given_.clear();
}

void ColdestRows::add_arrivals() {
  if (!tier_.take_arrivals(arrivals_)) scan();
  size_t unfilled = 0;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (i + kSlotsFetchedAhead < arrivals_.size()) ranks_.prefetch(arrivals_[i + kSlotsFetchedAhead]);
    const Slot slot = arrivals_[i];
    if (is_filled(slot)) {
      keep({rank_of(slot), slot});
    } else if (tier_.is_first()) {
      arrivals_[unfilled++] = slot;
    }  // else the row has left again
  }
  arrivals_.resize(unfilled);
}

void ColdestRows::scan() {
  // Before the scan, so that no arrival is missed; a row that is found twice does no harm.
  tier_.take_arrivals(arrivals_);
  std::vector<Candidate> found = std::exchange(sorted_, {});
  next_sorted_ = 0;
  // The rows of given_ are pinned, and found again.
  limit_ = find_coldest(rows_a_scan() + given_.size(), found, prefetched_);
  std::sort(found.begin(), found.end(), kColder);
  sorted_ = std::move(found);
  // The scan found late rows too, except those beyond the limit, where other rows may be colder.
  late_.clear();
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
  if (next_sorted_ + kSlotsFetchedAhead < sorted_.size()) {
    ranks_.prefetch(sorted_[next_sorted_ + kSlotsFetchedAhead].slot);
  }
  return true;
}

const std::vector<ColdestRows::Candidate>& ColdestRows::next(uint64_t count) {
  keep_given();
  given_.reserve(count);
  add_arrivals();
  forget_current();
  const bool lags = tier_.ranks_lag();
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  size_t given_before_scan = kNone;
  bool any_unpinned = false;
  while (given_.size() < count) {
    Candidate row;
    if (!take_coldest(row)) {
      if (any_unpinned || given_before_scan == given_.size()) break;
      given_before_scan = given_.size();
      scan();
      continue;
    }
    if (!is_filled(row.slot) || is_among(prefetched_, row.slot))
      continue;  // release() brings a prefetched one back
    if (lags && !is_current_.contains(row.slot)) {
      refresh(row, count - given_.size());
      given_before_scan = kNone;  // a scan finds other rows now
      continue;
    }
    // The slot may hold another row by now.
    const Rank rank = rank_of(row.slot);
    if (rank != row.rank) {
      keep({rank, row.slot});
    } else if (!is_given_.contains(row.slot)) {
      // A row may be known twice: a scan found it as it arrived, or its slot was filled again.
      is_given_.add(row.slot);
      given_.push_back(row);
      any_unpinned = any_unpinned || ranks_.pins(row.slot) == 0;
    }
  }
  return given_;
}

std::optional<Rank> ColdestRows::lower_bound() {
  keep_given();
  add_arrivals();
  for (bool has_scanned = false;;) {
    Candidate row;
    if (!take_coldest(row)) {
      if (has_scanned) return std::nullopt;
      has_scanned = true;
      scan();
      continue;
    }
    if (!is_filled(row.slot) || is_among(prefetched_, row.slot))
      continue;  // release() brings a prefetched one back
    const Rank rank = rank_of(row.slot);
    keep({rank, row.slot});
    if (rank == row.rank) return rank;
  }
}

void ColdestRows::refresh(const Candidate& row, uint64_t count) {
  const size_t first = current_.size();
  current_.push_back(row.slot);
  Candidate next;
  while (current_.size() - first < std::max(count, kMinRefreshed) && take_coldest(next)) {
    if (is_filled(next.slot)) current_.push_back(next.slot);
  }
  tier_.refresh_ranks(std::span(current_).subspan(first));
  for (size_t i = first; i < current_.size(); ++i) {
    is_current_.add(current_[i]);
    keep({rank_of(current_[i]), current_[i]});
  }
}

void ColdestRows::forget_current() {
  for (const Slot slot : current_) is_current_.remove(slot);
  current_.clear();
}

std::optional<Rank> ColdestRows::min_rank() const {
  if (tier_.ranks_lag()) {
    std::vector<Slot> filled;
    for (uint64_t i = 0; i < tier_.first_never_taken(); ++i) {
      if (is_filled(static_cast<Slot>(i))) filled.push_back(static_cast<Slot>(i));
    }
    tier_.refresh_ranks(filled);
  }
  std::vector<Candidate> rows;
  find_coldest(1, rows, /*prefetched=*/nullptr);
  if (rows.empty()) return std::nullopt;
  return rows.front().rank;
}

Rank ColdestRows::sampled_limit(uint64_t slots, uint64_t count, const PrefetchedRows* prefetched) const {
  constexpr uint64_t kSamples = 2048;
  if (count >= slots || slots < 4 * kSamples) return Rank::highest();
  std::vector<Rank> samples;
  samples.reserve(kSamples);
  for (uint64_t i = 0; i < kSamples; ++i) {
    const Slot slot = static_cast<Slot>(i * slots / kSamples);
    if (is_filled(slot) && !is_among(prefetched, slot)) samples.push_back(rank_of(slot));
  }
  const uint64_t place = samples.size() * count / slots;
  if (place < 8) return Rank::highest();  // too few to say
  std::nth_element(samples.begin(), samples.begin() + static_cast<ptrdiff_t>(place), samples.end());
  return samples[place];
}

Rank ColdestRows::find_coldest(uint64_t count, std::vector<Candidate>& rows,
                               const PrefetchedRows* prefetched) const {
  const uint64_t end = tier_.first_never_taken();
  Rank limit = sampled_limit(end, count, prefetched);
  rows.clear();
  // When the limit lets too many rows pass, only the colder half of them stays, and so on.
  const auto cut = [&] {
    const auto last = rows.begin() + static_cast<ptrdiff_t>(count);
    std::nth_element(rows.begin(), last, rows.end(), kColder);
    limit = last->rank;
    rows.erase(last, rows.end());
  };
  for (uint64_t i = 0; i < end; ++i) {
    const Slot slot = static_cast<Slot>(i);
    ranks_.prefetch(static_cast<Slot>(std::min(i + kSlotsScannedAhead, end - 1)));
    if (!is_filled(slot)) continue;
    const Candidate row{rank_of(slot), slot};
    if (row.rank > limit || is_among(prefetched, slot)) continue;
    rows.push_back(row);
    if (rows.size() == 2 * count) cut();
  }
  if (limit == Rank::highest() && rows.size() > count) cut();
  return limit;
}

}  // namespace embstore
