// Tests that a checkpoint has a row only once the row is durable in the pool, whichever thread wrote it; and
// that copies and claims stay with a row while it moves above the pool.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/emulated/emulated_device.h"
#include "memory/memory.h"
#include "store/inclusive_cache.h"
#include "testing/tests.h"
#include "tiers/hbm/hbm_tier.h"
#include "tiers/log/testing/table.h"
#include "tiers/medium/testing/pmem_medium.h"

namespace embstore {
namespace {

using medium::testing::Call;
using medium::testing::Noted;
using medium::testing::PmemMedium;

constexpr uint64_t kRows = 100;  // in the first tier

// A first tier full of changed rows, above a pool on a medium that records its calls.
class Tiers {
 public:
  Tiers() {
    pool_.tier->try_claim(kRows);
    std::vector<Slot> slots(kRows);
    first_.slots().try_claim(kRows);
    first_.slots().take(slots);
    const std::vector<float> row(layout_.row_floats(), 1.0f);
    for (const Slot slot : slots) {
      first_.put(slot, {.key = slot, .frequency = 1, .version = 0, .served = 0, .stamp = 1}, row.data());
      copies_.note_insert(RowRef(0, slot));
    }
    pool_.begin();
    copies_.mark_changed_as_wanted(1);
    medium_.take_notes();
  }
  InclusiveCache& copies() { return copies_; }
  PoolTier& pool() { return *pool_.tier; }
  bool has_all() const { return copies_.wanted_count() == 0; }
  // Returns whether all that was written since the construction was drained afterwards.
  bool is_durable() {
    for (const Noted& noted : medium_.take_notes()) {
      if (noted.call == Call::kWrite) is_drained_ = false;
      if (noted.call == Call::kDrain) is_drained_ = true;
    }
    return is_drained_;
  }

 private:
  const TemporaryDirectory directory_;
  const RowLayout layout_{8, 1};
  PmemMedium medium_{/*is_pmem=*/true};
  log::testing::PoolTable pool_{directory_ / "rows", layout_, PoolTier::kHeadroomSlots + 4 * kRows,
                                medium_.calls()};
  MemoryTier first_{
      "DRAM", layout_, MemoryRole::kFirst,
      kRows,  kRows,   allocate_heap_memory(MemoryTier::bytes_for(layout_, MemoryRole::kFirst, kRows))};
  InclusiveCache copies_{{{first_, &first_, nullptr}}, *pool_.tier};
  bool is_drained_ = true;
};

void check_that_all_is_durable(Tiers& tiers) {
  check(tiers.has_all(), "a checkpoint lacks rows that were written");
  check(tiers.is_durable(), "a checkpoint has a row that may be lost");
}

TEST(rows_that_updates_write_first) {
  Tiers tiers;
  tiers.pool().try_claim(kRows);
  for (Slot first = 0; first < kRows; first += 10) {
    InclusiveCache::Changes changes(tiers.copies());
    for (Slot slot = first; slot < first + 10; ++slot) {
      check(changes.prepare_change(RowRef(0, slot), slot), "a row that changes needs no claim");
      check(!tiers.has_all(), "a checkpoint has all of its rows before the last one is drained");
    }
  }
  check_that_all_is_durable(tiers);
}

TEST(rows_that_go_for_good) {
  Tiers tiers;
  for (Slot slot = 0; slot < kRows; ++slot) {
    check(!tiers.has_all(), "a checkpoint has rows that nobody wrote");
    tiers.copies().note_remove(slot, RowRef(0, slot));
  }
  check_that_all_is_durable(tiers);
}

TEST(rows_that_are_written_where_they_are) {
  Tiers tiers;
  for (Slot slot = 0; slot < kRows; ++slot) {
    InclusiveCache::WritePhase phase(tiers.copies());
    tiers.copies().write_wanted(RowRef(0, slot), slot, phase);
    check(!tiers.has_all(), "a checkpoint has a row that isn't drained");
  }
  tiers.pool().fence();
  tiers.copies().note_fenced(kRows);
  check_that_all_is_durable(tiers);
}

// Three tiers above a pool, the middle one in a GPU's memory, and a row that moves through them.
class WithHbm {
 public:
  WithHbm() { pool_.tier->try_claim(1); }

  // Tells only the cache of the move.
  bool moves(RowRef from, RowRef to) { return cache.note_move(kKey, from, to); }
  uint64_t free_slots() const { return pool_.tier->free_slots(); }
  uint64_t live() const { return pool_.tier->stats().rows; }
  // Puts a changed row into the stage and another into HBM; a checkpoint wants both.
  RowRef want_two() {
    pool_.tier->try_claim(1);
    Slot in_stage = 0;
    stage_->slots().try_claim(1);
    stage_->slots().take({&in_stage, 1});
    const std::vector<float> row(layout_.row_floats(), 1.0f);
    stage_->put(in_stage, {.key = 1, .frequency = 1, .version = 0, .served = 0, .stamp = 1}, row.data());
    RowBatch rows(layout_);
    rows.resize(1);
    rows.header(0) = {.key = 2, .frequency = 1, .version = 0, .served = 0, .stamp = 1};
    Slot in_hbm = 0;
    hbm_.write(rows, {&in_hbm, 1});
    cache.note_insert(RowRef(0, in_stage));
    cache.note_insert(RowRef(1, in_hbm));
    pool_.begin();
    cache.mark_changed_as_wanted(1);
    return RowRef(1, in_hbm);
  }
  // Writes the row to the pool, as a demotion does.
  Slot write() {
    RowBatch rows(layout_);
    rows.resize(1);
    rows.header(0) = {.key = kKey, .frequency = 1, .version = 0, .served = 0, .stamp = 1};
    Slot slot = 0;
    pool_.tier->write(rows, {&slot, 1});
    return slot;
  }

  static constexpr int64_t kKey = 5;
  static inline const RowRef kStage{0, 3};
  static inline const RowRef kHbm{1, 7};
  static inline const RowRef kDram{2, 1};

 private:
  std::unique_ptr<MemoryTier> memory(MemoryRole role) const {
    return std::make_unique<MemoryTier>("DRAM", layout_, role, kRows, kRows,
                                        allocate_heap_memory(MemoryTier::bytes_for(layout_, role, kRows)));
  }

  const TemporaryDirectory directory_;
  const RowLayout layout_{8, 1};
  log::testing::PoolTable pool_{directory_ / "rows", layout_, PoolTier::kHeadroomSlots + kRows};
  const std::unique_ptr<MemoryTier> stage_ = memory(MemoryRole::kFirst);
  HbmTier hbm_{layout_, kRows,
               std::make_shared<gpu::EmulatedDevice>(
                   gpu::EmulatedDevice::Options{.memory_bytes = 16 << 20, .seed = 1}),
               HbmTier::kPieceBytes, HbmTier::Copies::kInPool};
  const std::unique_ptr<MemoryTier> dram_ = memory(MemoryRole::kMiddle);

 public:
  InclusiveCache cache{
      {{*stage_, stage_.get(), nullptr}, {hbm_, nullptr, &hbm_}, {*dram_, dram_.get(), nullptr}},
      *pool_.tier};
};

TEST(copies_stay_while_rows_move_above) {
  WithHbm tiers;
  using T = WithHbm;
  const uint64_t free = tiers.free_slots();
  check(tiers.cache.note_insert(T::kStage), "a new row needs no claim");
  for (const auto& [from, to] : {std::pair{T::kStage, T::kHbm}, {T::kHbm, T::kDram}}) {
    check(!tiers.moves(from, to), "a place above the pool is a copy");
    check(!tiers.cache.update_needs_claim(to) && !tiers.cache.copy(to), "the row has lost its claim");
  }
  check(tiers.free_slots() == free, "a claim was lost");
  const RowRef in_pool(tiers.cache.pool_tier(), tiers.write());
  check(!tiers.moves(T::kDram, in_pool) && tiers.free_slots() == free, "the row has a place, and a claim");
  // The row goes up again, with a copy that is freed only when the row changes.
  check(tiers.moves(in_pool, T::kStage), "what is left in the pool isn't a copy");
  for (const auto& [from, to] : {std::pair{T::kStage, T::kHbm}, {T::kHbm, T::kStage}, {T::kStage, T::kHbm}}) {
    check(!tiers.moves(from, to), "a place above the pool is a copy");
    check(tiers.cache.copy(to) == in_pool.slot(), "the row has lost its copy");
    check(!tiers.cache.copy(from), "an empty slot has one");
    check(!tiers.cache.copy_of(to), "a row can go down to the pool from there");
  }
  check(!tiers.moves(T::kHbm, T::kDram) && tiers.cache.copy_of(T::kDram) == in_pool,
        "the row can't go down to its copy");
  check(!tiers.moves(T::kDram, T::kHbm) && tiers.live() == 1, "the copy has gone");
  PoolClaim claim(&tiers.cache);
  check(claim.try_add(1), "there is no place");
  {
    InclusiveCache::Changes changes(tiers.cache);
    check(changes.prepare_change(T::kHbm, T::kKey), "a row that changes on the device needs no claim");
    claim.pass_on();
  }
  check(tiers.live() == 0 && tiers.free_slots() == free, "the copy hasn't gone");
}

// A row that is wanted is written before it goes down to a tier whose rows the device's steps can change, so
// no more rows are wanted there than at the checkpoint's moment.
TEST(wanted_rows_are_written_before_they_go_down_to_hbm) {
  WithHbm tiers;
  InclusiveCache& cache = tiers.cache;
  const RowRef in_hbm = tiers.want_two();
  const std::vector<RowRef> wanted = cache.wanted();
  check(wanted.size() == 2 && wanted.front() == in_hbm && cache.wanted_count() == 2, "others are wanted");
  check(cache.wanted_on_device() == 1, "another number is wanted on the device");
  check(!cache.note_move(1, wanted.back(), WithHbm::kHbm) && cache.wanted_count() == 1, "it wasn't written");
  check(cache.copy(WithHbm::kHbm) && !cache.is_wanted(WithHbm::kHbm), "it has no copy");
  check(cache.wanted_on_device() == 1, "it's wanted on the device");
  check(!cache.note_move(2, in_hbm, WithHbm::kStage) && cache.is_wanted(WithHbm::kStage),
        "it isn't wanted any more");
  check(cache.wanted_count() == 1 && cache.wanted_on_device() == 0, "it's wanted on the device still");
}

}  // namespace
}  // namespace embstore
