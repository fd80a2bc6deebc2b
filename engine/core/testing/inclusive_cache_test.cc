// When a checkpoint has a row that it wants: only once the row is durable in the pool, whoever wrote it there.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "memory/memory.h"
#include "store/inclusive_cache.h"
#include "testing/check.h"
#include "tiers/log/testing/table.h"
#include "tiers/medium/testing/pmem_medium.h"

namespace embstore {
namespace {

using medium::testing::Call;
using medium::testing::Noted;
using medium::testing::PmemMedium;

constexpr uint64_t kRows = 100;  // of the first tier

// A first tier full of rows that changed, above a pool on a medium that notes what it's asked for.
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
      copies_.came(RowRef(InclusiveCache::kCache, slot));
    }
    pool_.begin();
    copies_.want_changed(1);
    medium_.take_notes();
  }
  InclusiveCache& copies() { return copies_; }
  PoolTier& pool() { return *pool_.tier; }
  bool has_all() const { return copies_.wanted_count() == 0; }
  // What was written since the tiers were made was drained after it.
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
  InclusiveCache copies_{first_, *pool_.tier};
  bool is_drained_ = true;
};

void check_that_all_is_durable(Tiers& tiers) {
  check(tiers.has_all(), "a checkpoint lacks rows that were written");
  check(tiers.is_durable(), "a checkpoint has a row that may be lost");
}

void rows_that_updates_write_first() {
  Tiers tiers;
  tiers.pool().try_claim(kRows);
  for (Slot first = 0; first < kRows; first += 10) {
    InclusiveCache::Changes changes(tiers.copies());
    for (Slot slot = first; slot < first + 10; ++slot) {
      check(changes.will_change(slot, slot), "a row that changes needs no claim");
      check(!tiers.has_all(), "a checkpoint has all of its rows before the last one is drained");
    }
  }
  check_that_all_is_durable(tiers);
}

void rows_that_go_for_good() {
  Tiers tiers;
  for (Slot slot = 0; slot < kRows; ++slot) {
    check(!tiers.has_all(), "a checkpoint has rows that nobody wrote");
    tiers.copies().will_go(slot, RowRef(InclusiveCache::kCache, slot));
  }
  check_that_all_is_durable(tiers);
}

void rows_that_are_written_where_they_are() {
  Tiers tiers;
  for (Slot slot = 0; slot < kRows; ++slot) {
    InclusiveCache::WritePhase phase(tiers.copies());
    tiers.copies().write_wanted(slot, slot, phase);
    check(!tiers.has_all(), "a checkpoint has a row that isn't drained");
  }
  tiers.pool().fence();
  tiers.copies().were_fenced(kRows);
  check_that_all_is_durable(tiers);
}

}  // namespace
}  // namespace embstore

int main() {
  using embstore::tested_case;
  const std::pair<const char*, void (*)()> tests[] = {
      {"rows that updates write first", embstore::rows_that_updates_write_first},
      {"rows that go for good", embstore::rows_that_go_for_good},
      {"rows that are written where they are", embstore::rows_that_are_written_where_they_are},
  };
  for (const auto& [name, run] : tests) {
    tested_case() = name;
    run();
  }
  std::printf("held: copies in a pool\n");
  return 0;
}
