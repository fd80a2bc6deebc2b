// Compares the rows that a tier would give up with all of its rows sorted: rows come, go, are accessed,
// pinned or prefetched, and come back to the slot that they left; accesses are counted after their row has
// left, or where the tier doesn't see them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "movement/coldest_rows.h"
#include "testing/failing_memory.h"
#include "testing/tests.h"
#include "tiers/memory/memory_tier.h"

namespace embstore {
namespace {

constexpr uint64_t kSlots = 600;  // more than a scan finds at once

// A first tier, a tier below, and one below whose accesses are counted elsewhere.
enum class Kind { kFirst, kMiddle, kLagging };

// A tier below the first whose own ranks don't see the accesses to its rows.
class LaggingTier final : public RankedTier {
 public:
  explicit LaggingTier(MemoryTier& tier) : tier_(tier) {}

  void access(Slot slot, uint64_t stamp) {
    Known& known = known_[slot];
    ++known.served;
    known.stamp = stamp;
  }
  void came(Slot slot, const RowHeader& header) { known_[slot] = {header.frequency, 0, header.stamp}; }
  Rank rank(Slot slot, CacheStrategy strategy) const {
    const Known& known = known_.at(slot);
    return Rank::of(strategy, known.frequency + known.served, known.stamp);
  }

  SlotRanks& ranks() const override { return tier_.ranks(); }
  uint64_t slot_count() const override { return tier_.slot_count(); }
  uint64_t max_slots() const override { return tier_.max_slots(); }
  uint64_t first_never_taken() const override { return tier_.first_never_taken(); }
  int64_t key(Slot slot) const override { return tier_.key(slot); }
  bool keys_are_with_ranks() const override { return tier_.keys_are_with_ranks(); }
  bool take_arrivals(std::vector<Slot>& slots) override { return tier_.take_arrivals(slots); }
  bool is_first() const override { return false; }
  bool ranks_lag() const override { return true; }
  void refresh_ranks(std::span<const Slot> slots) override {
    for (const Slot slot : slots) {
      const Known& known = known_.at(slot);
      tier_.ranks().fill(slot, tier_.key(slot), known.frequency, known.served, known.stamp);
    }
  }

 private:
  struct Known {
    uint64_t frequency = 0;
    uint64_t served = 0;
    uint64_t stamp = 0;
  };

  MemoryTier& tier_;
  std::map<Slot, Known> known_;
};

class ModelledTier {
 public:
  ModelledTier(Kind kind, CacheStrategy strategy, uint64_t seed)
      : random_(seed),
        kind_(kind),
        strategy_(strategy),
        tier_("DRAM", layout_, role(), kSlots, kSlots,
              allocate_heap_memory(MemoryTier::bytes_for(layout_, role(), kSlots))),
        lagging_(tier_),
        coldest_(kind == Kind::kLagging ? static_cast<RankedTier&>(lagging_) : tier_, strategy,
                 &prefetched_) {}

  size_t rows() const { return slots_.size(); }
  uint64_t below(uint64_t end) { return random_() % end; }

  // There are few keys, so that they come back, to slots that they had before.
  void bring() {
    const auto key = static_cast<int64_t>(below(2 * kSlots));
    if (slots_.contains(key) || rows() == kSlots) return;
    Slot slot;
    check(tier_.slots().try_claim(1), "there is no slot for a row");
    tier_.slots().take({&slot, 1});
    const std::vector<float> row(layout_.row_floats());
    const RowHeader header{.key = key, .frequency = below(5), .version = 0, .served = 0, .stamp = ++now_};
    tier_.put(slot, header, row.data());
    lagging_.came(slot, header);
    slots_[key] = slot;
  }

  // Below a first tier, rows aren't pinned, and are accessed only if ranks lag.
  void access() {
    if (slots_.empty() || kind_ == Kind::kMiddle) return;
    const auto [key, slot] = *any();
    if (kind_ == Kind::kLagging) return lagging_.access(slot, ++now_);
    check(tier_.ranks().count_served(slot, key, {++now_, 1}), "an access to a row isn't counted");
  }
  // Counts an access to the row that left last: its slot may be free, or have another row.
  void access_too_late() {
    if (kind_ != Kind::kFirst || slots_.contains(last_left_.key)) return;
    check(!tier_.ranks().count_served(last_left_.slot, last_left_.key, {++now_, 1}),
          "an access to a row that has left is counted");
  }
  void pin_or_unpin() {
    if (slots_.empty() || kind_ != Kind::kFirst) return;
    const Slot slot = any()->second;
    if (is_pinned(slot)) {
      tier_.ranks().unpin(slot);
    } else {
      tier_.ranks().pin(slot);
    }
  }

  // A batch prefetches some keys, with rows or without, and some are released.
  void prefetch() {
    std::vector<int64_t> keys(below(40));
    for (int64_t& key : keys) key = static_cast<int64_t>(below(2 * kSlots));
    prefetched_.add(++turn_, keys, [](int64_t) { return PrefetchedRows::Where::kUp; });
    if (below(2) == 0) release(turn_ - below(4));
  }
  void release(uint64_t last_over) {
    prefetched_.release(last_over, [this](int64_t key) {
      if (const auto row = slots_.find(key); row != slots_.end()) coldest_.release(row->second);
    });
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

  void check_lower_bound() {
    std::optional<Rank> least;
    for (const auto& [key, slot] : slots_) {
      if (!prefetched_.contains(key)) least = std::min(least.value_or(Rank::highest()), rank(slot));
    }
    const std::optional<Rank> bound = coldest_.lower_bound();
    check(bound.has_value() == least.has_value(), "there is a bound without rows, or none with some");
    if (!bound) return;
    check(*bound <= *least, "a row ranks below the bound");
    check(kind_ == Kind::kLagging || *bound == *least, "the coldest row ranks above the bound");
  }

  // Checks the coldest `count` rows; most of them leave, as in a demotion.
  void demote(uint64_t count) {
    const std::vector<ColdestRows::Candidate> given = coldest_.next(count);
    std::vector<Rank> all;
    std::vector<Rank> expected;
    for (const auto& [key, slot] : slots_) {
      all.push_back(rank(slot));
      if (!prefetched_.contains(key)) expected.push_back(all.back());
    }
    std::sort(expected.begin(), expected.end());
    check(!given.empty() || expected.empty(), "rows are there and none is given");
    check(given.size() <= std::min<size_t>(count, expected.size()), "more rows than asked for");
    std::set<Slot> once;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto& [rank, slot] = given[i];
      check(once.insert(slot).second, "a row is given twice");
      const auto row = slots_.find(tier_.key(slot));
      check(row != slots_.end() && row->second == slot, "a row is given that isn't there");
      check(!prefetched_.contains(row->first), "a row is given that is prefetched");
      check(rank == expected[i],
            [&] { return "row " + std::to_string(i) + " isn't the coldest of the rest"; });
    }
    if (below(8) == 0 && !all.empty()) {
      check(coldest_.min_rank() == *std::min_element(all.begin(), all.end()),
            "the coldest row ranks otherwise");
    }
    for (const auto& [rank, slot] : given) {
      if (is_pinned(slot) || below(8) == 0) continue;
      remove({tier_.key(slot), slot});
      if (below(2) == 0) coldest_.note_left(slot);
    }
  }

 private:
  MemoryRole role() const { return kind_ == Kind::kFirst ? MemoryRole::kFirst : MemoryRole::kMiddle; }
  Rank rank(Slot slot) const {
    return kind_ == Kind::kLagging ? lagging_.rank(slot, strategy_) : tier_.ranks().rank(slot, strategy_);
  }
  std::map<int64_t, Slot>::const_iterator any() {
    const auto row = slots_.lower_bound(static_cast<int64_t>(below(2 * kSlots)));
    return row == slots_.end() ? slots_.begin() : row;
  }
  bool is_pinned(Slot slot) const { return kind_ == Kind::kFirst && tier_.ranks().pins(slot) != 0; }

  const RowLayout layout_{4, 0};
  std::mt19937_64 random_;
  const Kind kind_;
  const CacheStrategy strategy_;
  MemoryTier tier_;
  LaggingTier lagging_;
  PrefetchedRows prefetched_{kSlots / 2};
  uint64_t turn_ = 0;
  ColdestRows coldest_;
  std::map<int64_t, Slot> slots_;
  Place last_left_{.key = -1, .slot = 0};
  uint64_t now_ = AccessClock::kFirstStamp;
};

// A tier that is full of rows; their keys count from 0, and key 0 is the coldest.
struct FullTier {
  FullTier(MemoryRole role, uint64_t rows)
      : tier("DRAM", layout, role, rows, rows,
             allocate_heap_memory(MemoryTier::bytes_for(layout, role, rows))),
        slots(rows) {
    check(tier.slots().try_claim(rows), "there is no slot for a row");
    tier.slots().take(slots);
    std::shuffle(slots.begin(), slots.end(), std::mt19937_64(1));
    const std::vector<float> row(layout.row_floats());
    for (uint64_t i = 0; i < rows; ++i) {
      tier.put(slots[i],
               {.key = static_cast<int64_t>(i), .frequency = 1, .version = 0, .served = 0, .stamp = i + 2},
               row.data());
    }
  }

  const RowLayout layout{4, 0};
  MemoryTier tier;
  std::vector<Slot> slots;  // by key
};

// However many of the coldest rows are pinned and stay, the next ones are given.
TEST(pinned_rows_hide_none_that_may_leave) {
  constexpr uint64_t kPinned = 1500;
  constexpr uint64_t kCount = 1600;
  FullTier full(MemoryRole::kFirst, /*rows=*/2000);
  ColdestRows coldest(full.tier, CacheStrategy::kLru);
  for (uint64_t i = 0; i < kPinned; ++i) full.tier.ranks().pin(full.slots[i]);
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<ColdestRows::Candidate> given = coldest.next(kCount);
    check(given.size() > kPinned && given.size() <= kCount, "no row is given that may leave");
    for (uint64_t i = 0; i < given.size(); ++i)
      check(given[i].slot == full.slots[i], "a row isn't the coldest of the rest");
  }
}

TEST(memory_that_runs_out_hides_no_row) {
  constexpr uint64_t kCount = 1000;
  FullTier full(MemoryRole::kFirst, /*rows=*/20'000);
  std::optional<ColdestRows> coldest(std::in_place, full.tier, CacheStrategy::kLru);
  const auto check_next = [&] {
    const std::vector<ColdestRows::Candidate>& given = coldest->next(kCount);
    check(std::ranges::equal(given, std::span(full.slots).first(kCount), {}, &ColdestRows::Candidate::slot),
          "other rows are given");
  };
  with_each_allocation_failing([&] { coldest->next(kCount); },
                               [&] {
                                 check_next();
                                 coldest.emplace(full.tier, CacheStrategy::kLru);
                               });
  check_next();
}

// The coldest rows of this tier are prefetched: so many that a scan finds no others unless it looks for them.
TEST(prefetched_rows_hide_none_that_may_leave) {
  constexpr uint64_t kRows = 20'000;  // more than are sorted to find the coldest
  constexpr uint64_t kPrefetched = 19'000;
  FullTier full(MemoryRole::kMiddle, kRows);
  PrefetchedRows prefetched(kPrefetched);
  ColdestRows coldest(full.tier, CacheStrategy::kLru, &prefetched);
  prefetched.add(1, keys_from(0, kRows), [](int64_t) { return PrefetchedRows::Where::kUp; });
  for (uint64_t left = kRows - kPrefetched; left != 0;) {
    const std::vector<ColdestRows::Candidate> given = coldest.next(64);
    check(!given.empty(), "no row is given that may leave");
    for (const auto& [rank, slot] : given) {
      const Place place{full.tier.key(slot), slot};
      check(place.key == static_cast<int64_t>(kRows - left), "a row isn't the coldest of the rest");
      full.tier.erase({&place, 1});
      coldest.note_left(slot);
      --left;
    }
  }
  check(coldest.next(64).empty(), "a row is given that is prefetched");
  prefetched.release(1, [&](int64_t key) { coldest.release(full.slots[static_cast<size_t>(key)]); });
  check(coldest.next(64).front().slot == full.slots[0], "a row that may go again isn't given");
}

void the_coldest_rows_are_given_once_each(Kind kind, CacheStrategy strategy, uint64_t seed) {
  ModelledTier tier(kind, strategy, seed);
  for (int step = 0; step < 20'000; ++step) {
    switch (tier.below(13)) {
      case 0:
      case 1:
      case 2:
      case 3: tier.bring(); break;
      case 4:
      case 5: tier.access(); break;
      case 6: tier.remove_any(); break;
      case 7: tier.pin_or_unpin(); break;
      case 8: tier.access_too_late(); break;
      case 9: tier.prefetch(); break;
      case 10: tier.check_lower_bound(); break;
      case 11:
        // More arrivals than a tier notes.
        if (tier.below(40) == 0) {
          for (uint64_t row = 0; row < kSlots / 2; ++row) tier.bring();
        }
        break;
      default:
        if (tier.rows() > kSlots / 2 || tier.below(16) == 0) tier.demote(1 + tier.below(64));
    }
  }
}

TEST(the_coldest_rows_of_every_kind_of_tier_are_given_once_each) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const Kind kind : {Kind::kFirst, Kind::kMiddle, Kind::kLagging}) {
      the_coldest_rows_are_given_once_each(kind, CacheStrategy::kLfu, seed);
      the_coldest_rows_are_given_once_each(kind, CacheStrategy::kLru, seed);
    }
  }
}

}  // namespace
}  // namespace embstore
