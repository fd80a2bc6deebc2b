// The rows that a tier would give up, compared with all of its rows sorted: rows come, go, are accessed or pinned, and
// come back to the slot that they left; accesses are counted after their row has left.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "movement/coldest_rows.h"
#include "testing/check.h"
#include "tiers/memory/memory_tier.h"

namespace embstore {
namespace {

constexpr uint64_t kSlots = 600;  // more than a scan finds at once

class ModelledTier {
 public:
  ModelledTier(MemoryRole role, CacheStrategy strategy, uint64_t seed)
      : random_(seed),
        role_(role),
        strategy_(strategy),
        tier_("DRAM", layout_, role, kSlots, kSlots,
              allocate_heap_memory(MemoryTier::bytes_for(layout_, role, kSlots))),
        coldest_(tier_, strategy) {}

  size_t rows() const { return slots_.size(); }
  uint64_t below(uint64_t end) { return random_() % end; }

  // Keys are few, so that they come back, and to slots where they were.
  void bring() {
    const auto key = static_cast<int64_t>(below(2 * kSlots));
    if (slots_.contains(key) || rows() == kSlots) return;
    Slot slot;
    check(tier_.slots().try_claim(1), "there is no slot for a row");
    tier_.slots().take({&slot, 1});
    const std::vector<float> row(layout_.row_floats());
    tier_.put(slot, {.key = key, .frequency = below(5), .version = 0, .served = 0, .stamp = ++now_},
              row.data());
    slots_[key] = slot;
  }

  // Below a first tier, rows are neither accessed nor pinned.
  void access() {
    if (slots_.empty() || role_ != MemoryRole::kFirst) return;
    const auto [key, slot] = *any();
    check(tier_.ranks().count_served(slot, key, ++now_), "an access to a row isn't counted");
  }
  // Counts an access to the row that left last: its slot may be free, or have another row.
  void access_too_late() {
    if (role_ != MemoryRole::kFirst || slots_.contains(last_left_.key)) return;
    check(!tier_.ranks().count_served(last_left_.slot, last_left_.key, ++now_),
          "an access to a row that has left is counted");
  }
  void pin_or_unpin() {
    if (slots_.empty() || role_ != MemoryRole::kFirst) return;
    const Slot slot = any()->second;
    if (is_pinned(slot)) {
      tier_.ranks().unpin(slot);
    } else {
      tier_.ranks().pin(slot);
    }
  }

  void remove(const Place& place) {
    check(slots_.erase(place.key) == 1, "a row was given that isn't there");
    tier_.erase({&place, 1});
    last_left_ = place;
  }
  void remove_any() {
    if (slots_.empty()) return;
    const auto row = any();
    if (!is_pinned(row->second)) remove({row->first, row->second});
  }

  // Checks the coldest `count` rows; most of them leave, as they do in a demotion.
  void demote(uint64_t count) {
    const std::vector<ColdestRows::Candidate> given = coldest_.next(count);
    std::vector<Rank> expected;
    for (const auto& [key, slot] : slots_) expected.push_back(tier_.ranks().rank(slot, strategy_));
    std::sort(expected.begin(), expected.end());
    check(!given.empty() || expected.empty(), "rows are there and none is given");
    check(given.size() <= std::min<size_t>(count, expected.size()), "more rows than asked for");
    std::set<Slot> once;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto& [rank, slot] = given[i];
      check(once.insert(slot).second, "a row is given twice");
      const auto row = slots_.find(tier_.key(slot));
      check(row != slots_.end() && row->second == slot, "a row is given that isn't there");
      check(rank == expected[i],
            [&] { return "row " + std::to_string(i) + " isn't the coldest of the rest"; });
    }
    for (const auto& [rank, slot] : given) {
      if (is_pinned(slot) || below(8) == 0) continue;
      remove({tier_.key(slot), slot});
      if (below(2) == 0) coldest_.left(slot);
    }
  }

 private:
  std::map<int64_t, Slot>::const_iterator any() {
    const auto row = slots_.lower_bound(static_cast<int64_t>(below(2 * kSlots)));
    return row == slots_.end() ? slots_.begin() : row;
  }
  bool is_pinned(Slot slot) const { return role_ == MemoryRole::kFirst && tier_.ranks().pins(slot) != 0; }

  const RowLayout layout_{4, 0};
  std::mt19937_64 random_;
  const MemoryRole role_;
  const CacheStrategy strategy_;
  MemoryTier tier_;
  ColdestRows coldest_;
  std::map<int64_t, Slot> slots_;
  Place last_left_{.key = -1, .slot = 0};
  uint64_t now_ = AccessClock::kFirstStamp;
};

// However many of the coldest rows are pinned, and so stay.
void pinned_rows_hide_none_that_may_leave() {
  constexpr uint64_t kRows = 2000;  // of a full tier
  constexpr uint64_t kPinned = 1500;
  constexpr uint64_t kCount = 1600;
  const RowLayout layout(4, 0);
  MemoryTier tier("DRAM", layout, MemoryRole::kFirst, kRows, kRows,
                  allocate_heap_memory(MemoryTier::bytes_for(layout, MemoryRole::kFirst, kRows)));
  ColdestRows coldest(tier, CacheStrategy::kLru);
  std::vector<Slot> slots(kRows);
  check(tier.slots().try_claim(kRows), "there is no slot for a row");
  tier.slots().take(slots);
  const std::vector<float> row(layout.row_floats());
  for (uint64_t i = 0; i < kRows; ++i) {
    tier.put(slots[i],
             {.key = static_cast<int64_t>(i), .frequency = 1, .version = 0, .served = 0, .stamp = i + 2},
             row.data());
    if (i < kPinned) tier.ranks().pin(slots[i]);
  }
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<ColdestRows::Candidate> given = coldest.next(kCount);
    check(given.size() > kPinned && given.size() <= kCount, "no row is given that may leave");
    for (uint64_t i = 0; i < given.size(); ++i)
      check(given[i].slot == slots[i], "a row isn't the coldest of the rest");
  }
}

void the_coldest_rows_are_given_once_each(MemoryRole role, CacheStrategy strategy, uint64_t seed) {
  ModelledTier tier(role, strategy, seed);
  for (int step = 0; step < 20'000; ++step) {
    switch (tier.below(10)) {
      case 0:
      case 1:
      case 2:
      case 3: tier.bring(); break;
      case 4:
      case 5: tier.access(); break;
      case 6: tier.remove_any(); break;
      case 7: tier.pin_or_unpin(); break;
      case 8: tier.access_too_late(); break;
      default:
        if (tier.rows() > kSlots / 2 || tier.below(16) == 0) tier.demote(1 + tier.below(64));
    }
  }
}

}  // namespace
}  // namespace embstore

int main() {
  using embstore::CacheStrategy;
  using embstore::MemoryRole;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const MemoryRole role : {MemoryRole::kFirst, MemoryRole::kMiddle}) {
      embstore::the_coldest_rows_are_given_once_each(role, CacheStrategy::kLfu, seed);
      embstore::the_coldest_rows_are_given_once_each(role, CacheStrategy::kLru, seed);
    }
  }
  embstore::pinned_rows_hide_none_that_may_leave();
  std::printf("held: the coldest rows\n");
  return 0;
}
