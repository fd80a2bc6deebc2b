// Compares random operations and checkpoints, in processes that end in between, with an account of them.
#include <string>

#include "tiers/medium/testing/pmem_medium.h"
#include "workload.h"

namespace embstore::log::testing {
namespace {

void run(const TableSite& of, uint64_t first_seed, uint64_t seeds) {
  UnwaitingCalls calls;
  for (uint64_t seed = first_seed; seed < first_seed + scaled_count(seeds); ++seed) {
    tested_case() = "seed " + std::to_string(seed);
    const TemporaryDirectory directory;
    TableSite site = of;
    site.root = directory.path();
    site.calls = &calls;
    site.slots = PoolTier::kHeadroomSlots + 3000;
    const std::unique_ptr<Workload> workload = make_workload(site, seed);
    for (int step = 1; step <= 1200; ++step) {
      workload->step();
      if (step % 15 == 0) workload->expect();
      if (step % 120 == 0) {
        workload->restart();
        workload->expect();
      }
    }
  }
  tested_case().clear();
}

TEST(random_checkpoints_in_a_pool) { run({.is_pool = true, .root = {}}, 0, 12); }
TEST(random_checkpoints_in_persistent_memory) {
  const medium::testing::PmemMedium medium(/*is_pmem=*/true);
  run({.is_pool = true, .root = {}, .libpmem = &medium.calls()}, 20, 8);
}
TEST(random_checkpoints_in_files) { run({.is_pool = false, .root = {}}, 40, 10); }
TEST(random_checkpoints_in_files_past_the_page_cache) {
  TableSite site{.is_pool = false, .root = {}};
  site.options.direct = true;
  run(site, 60, 3);
}
TEST(random_checkpoints_in_files_with_a_compaction_thread) {
  TableSite site{.is_pool = false, .root = {}};
  site.options.compaction = CompactionMode::kOwnThread;
  run(site, 80, 10);
}

}  // namespace
}  // namespace embstore::log::testing
