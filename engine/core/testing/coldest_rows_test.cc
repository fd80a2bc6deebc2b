// The rows that a tier would give up, against all of its rows sorted: whatever rows come, go, are accessed,
// are pinned, or come back to the slot that they left.
#include <algorithm>
#include <cstdint>
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
constexpr size_t kMostPinned = 40;

class ModelledTier {
 public:
  ModelledTier(CacheStrategy strategy, uint64_t seed)
      : random_(seed),
        strategy_(strategy),
        tier_("DRAM", layout_, MemoryRole::kFirst, kSlots, kSlots,
              allocate_heap_memory(MemoryTier::bytes_for(layout_, MemoryRole::kFirst, kSlots))),
        coldest_(tier_, strategy) {}

  size_t rows() const { return slots_.size(); }
  uint64_t below(uint64_t end) { return random_() % end; }

  // Keys are few, so that they come back, and to slots where they were.
  void bring() {
    const auto key = static_cast<int64_t>(below(2 * kSlots));
    if (slots_.contains(key) || rows() == kSlots) return;
    check(tier_.slots().try_claim(1), "a free slot can't be claimed");
    Slot slot;
    tier_.slots().take({&slot, 1});
    const std::vector<float> row(layout_.row_floats());
    tier_.put(slot, {.key = key, .frequency = below(5), .version = 0, .served = 0, .stamp = ++now_},
              row.data());
    slots_[key] = slot;
  }

  void access() {
    if (slots_.empty()) return;
    auto row = slots_.lower_bound(static_cast<int64_t>(below(2 * kSlots)));
    if (row == slots_.end()) row = slots_.begin();
    tier_.ranks().count_served(row->second, 1, ++now_);
  }

  // Few at a time, as an update has its rows pinned.
  void pin_or_unpin() {
    if (pinned_.size() == kMostPinned || (!pinned_.empty() && below(2) == 0)) {
      tier_.ranks().unpin(*pinned_.begin());
      pinned_.erase(pinned_.begin());
      return;
    }
    const auto row = slots_.lower_bound(static_cast<int64_t>(below(2 * kSlots)));
    if (row == slots_.end() || !pinned_.insert(row->second).second) return;
    tier_.ranks().pin(row->second);
  }

  void remove(const Place& place) {
    check(slots_.erase(place.key) == 1, "a row was given that isn't there");
    tier_.erase({&place, 1});
  }
  void remove_any() {
    if (slots_.empty()) return;
    auto row = slots_.lower_bound(static_cast<int64_t>(below(2 * kSlots)));
    if (row == slots_.end()) row = slots_.begin();
    if (!pinned_.contains(row->second)) remove({row->first, row->second});
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
      check(rank == expected[i], "row " + std::to_string(i) + " isn't the coldest of the rest");
    }
    const bool any_unpinned = std::any_of(given.begin(), given.end(),
                                          [this](const auto& row) { return !pinned_.contains(row.slot); });
    check(any_unpinned || rows() == pinned_.size() || count <= pinned_.size(),
          "rows are there that could go, and none of them is given");
    for (const auto& [rank, slot] : given) {
      if (pinned_.contains(slot) || below(8) == 0) continue;
      remove({tier_.key(slot), slot});
      if (below(2) == 0) coldest_.left(slot);
    }
  }

 private:
  const RowLayout layout_{4, 0};
  std::mt19937_64 random_;
  const CacheStrategy strategy_;
  MemoryTier tier_;
  ColdestRows coldest_;
  std::map<int64_t, Slot> slots_;
  std::set<Slot> pinned_;
  uint64_t now_ = AccessClock::kFirstStamp;
};

void the_coldest_rows_are_given_once_each(CacheStrategy strategy, uint64_t seed) {
  ModelledTier tier(strategy, seed);
  for (int step = 0; step < 20'000; ++step) {
    switch (tier.below(9)) {
      case 0:
      case 1:
      case 2:
      case 3: tier.bring(); break;
      case 4:
      case 5: tier.access(); break;
      case 6: tier.remove_any(); break;
      case 7: tier.pin_or_unpin(); break;
      default:
        if (tier.rows() > kSlots / 2 || tier.below(16) == 0) tier.demote(1 + tier.below(64));
    }
  }
}

}  // namespace
}  // namespace embstore

int main() {
  using embstore::CacheStrategy;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    embstore::the_coldest_rows_are_given_once_each(CacheStrategy::kLfu, seed);
    embstore::the_coldest_rows_are_given_once_each(CacheStrategy::kLru, seed);
  }
  std::printf("held: the coldest rows\n");
  return 0;
}
