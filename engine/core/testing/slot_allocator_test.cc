// Tests in which slots are claimed, taken, given back, added for a large batch and removed again: whatever
// happens in between, no caller is refused a free slot or given a taken one, and the slots that a large batch
// needed are gone after it.
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "testing/tests.h"
#include "tiers/memory/slot_allocator.h"

namespace embstore {
namespace {

constexpr uint64_t kFirstSlots = 40;
constexpr uint64_t kMaxSlots = 200;

class ModelledSlots {
 public:
  explicit ModelledSlots(uint64_t seed) : random_(seed), slots_(kFirstSlots, kMaxSlots, kMaxSlots) {}

  void step() {
    switch (random_() % 5) {
      case 0: return claim();
      case 1: return take();
      case 2: return give_back();
      case 3: return random_() % 4 == 0 ? add() : take();
      default: return remove_added();
    }
  }
  void expect() const {
    check(slots_.free_slots() == count_ - claimed_ - taken_.size(), "another number of slots is free");
    check(slots_.taken_slots() == taken_.size(), "another number of slots is taken");
    check(slots_.slots() == count_, "there is another number of slots");
  }
  // Gives everything back, and checks that added slots are gone.
  void end() {
    slots_.give_claim_back(claimed_);
    claimed_ = 0;
    while (!taken_.empty()) give_back();
    remove_added();
    check(slots_.slots() == kFirstSlots && slots_.free_slots() == kFirstSlots,
          "slots that were added for a while are still there");
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }

  void claim() {
    const uint64_t count = 1 + below(30);
    const bool fits = claimed_ + taken_.size() + count <= count_;
    check(slots_.try_claim(count) == fits, fits ? "free slots are refused" : "more is claimed than there is");
    if (fits) claimed_ += count;
  }
  void take() {
    std::vector<Slot> some(below(claimed_ + 1));
    slots_.take(some);
    for (const Slot slot : some) {
      check(slot < count_ && taken_.insert(slot).second, "a slot is given out twice, or isn't there");
    }
    claimed_ -= some.size();
  }
  void give_back() {
    if (taken_.empty()) return;
    auto at = taken_.begin();
    std::advance(at, static_cast<ptrdiff_t>(below(taken_.size())));
    slots_.give_back(std::vector<Slot>{*at});
    taken_.erase(at);
  }
  void add() {
    const uint64_t count = 1 + below(30);
    if (count_ + count > kMaxSlots) return;
    slots_.add_slots(count);
    count_ += count;
  }
  void remove_added() {
    const bool are_needed =
        claimed_ + taken_.size() > kFirstSlots || (!taken_.empty() && *taken_.rbegin() >= kFirstSlots);
    bool was_called = false;
    slots_.remove_added([&](uint64_t begin, uint64_t end) {
      was_called = true;
      check(begin == kFirstSlots && begin < end && end <= count_, "other slots than those added are removed");
    });
    check(!was_called || !are_needed, "slots that are needed were removed");
    if (!are_needed) count_ = kFirstSlots;
  }

  std::mt19937_64 random_;
  SlotAllocator slots_;
  uint64_t count_ = kFirstSlots;
  uint64_t claimed_ = 0;
  std::set<Slot> taken_;
};

// Another process took some slots before: the others come in ascending order, and then those that came back.
void begin_with_taken_slots(uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint64_t count = 1 + random() % 300;
  const uint64_t one_in = 1 + random() % 5;
  std::vector<uint64_t> taken((count + 63) / 64);
  std::vector<Slot> expected;
  for (uint64_t slot = 0; slot < count; ++slot) {
    if (random() % one_in == 0) {
      taken[slot / 64] |= uint64_t{1} << (slot % 64);
    } else {
      expected.push_back(static_cast<Slot>(slot));
    }
  }
  SlotAllocator slots(count, count, 0);
  slots.take_existing(taken);
  check(slots.free_slots() == expected.size() && slots.taken_slots() == count - expected.size(),
        "another number of slots is taken");
  std::vector<Slot> others(expected.size());
  check(slots.try_claim(others.size()) && !slots.try_claim(1), "other slots are free than those not taken");
  slots.take(others);
  check(others == expected, "free slots don't come in ascending order");
}

TEST(claims_leave_what_they_are_told_to) {
  SlotAllocator slots(10, 10, 0);
  check(!slots.try_claim(7, 4) && slots.free_slots() == 10, "a claim leaves too little");
  check(slots.try_claim(6, 4) && slots.free_slots() == 4, "a claim that leaves enough is refused");
  check(slots.try_claim(0, 4) && !slots.try_claim(0, 5), "what is to be left isn't looked at");
}

TEST(slots_are_given_as_a_plain_model_gives_them) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    ModelledSlots slots(seed);
    for (int i = 0; i < 400; ++i) {
      slots.step();
      slots.expect();
    }
    slots.end();
    begin_with_taken_slots(seed);
  }
  tested_case().clear();
}

}  // namespace
}  // namespace embstore
