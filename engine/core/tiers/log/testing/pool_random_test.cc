// Operations at random against an account of them, and processes that end in between.
#include <string>

#include "pool_workload.h"
#include "tiers/medium/testing/pmem_medium.h"

namespace embstore::log::testing {
namespace {

using medium::testing::PmemMedium;

void run(uint64_t seed, const LibPmem& calls) {
  constexpr int kSteps = 1500;
  constexpr int kProcessSteps = 100;
  tested_case() = "seed " + std::to_string(seed);
  const TemporaryDirectory directory;
  PoolWorkload workload(directory / "var", seed, calls);
  for (int step = 1; step <= kSteps; ++step) {
    workload.step();
    if (step % 10 == 0) workload.expect();
    if (step % kProcessSteps == 0) {
      workload.restart();
      workload.expect();
    }
  }
  tested_case().clear();
}

TEST(operations_at_random_leave_what_they_should) {
  for (uint64_t seed = 0; seed < scenes(10); ++seed) run(seed, libpmem());
}

TEST(operations_at_random_on_persistent_memory) {
  for (uint64_t seed = 10; seed < 10 + scenes(6); ++seed) {
    const PmemMedium medium(/*is_pmem=*/true);
    run(seed, medium.calls());
  }
}

}  // namespace

}  // namespace embstore::log::testing
