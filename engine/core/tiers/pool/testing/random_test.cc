// Operations at random against an account of them, and processes that end in between.
#include <string>

#include "medium.h"
#include "workload.h"

namespace embstore::pool::testing {
namespace {

void run(uint64_t seed, const LibPmem& calls) {
  constexpr int kSteps = 1500;
  constexpr int kProcessSteps = 100;
  tested_case() = "seed " + std::to_string(seed);
  const TemporaryDirectory directory;
  Workload workload(directory / "var", seed, calls);
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

void operations_at_random_leave_what_they_should() {
  for (uint64_t seed = 0; seed < scenes(10); ++seed) run(seed, libpmem());
}

void operations_at_random_on_persistent_memory() {
  for (uint64_t seed = 10; seed < 10 + scenes(6); ++seed) {
    const Medium medium(/*is_pmem=*/true);
    run(seed, medium.calls());
  }
}

constexpr Test kTests[] = {
    {"operations_at_random_leave_what_they_should", operations_at_random_leave_what_they_should},
    {"operations_at_random_on_persistent_memory", operations_at_random_on_persistent_memory},
};

}  // namespace

std::span<const Test> random_tests() { return kTests; }

}  // namespace embstore::pool::testing
