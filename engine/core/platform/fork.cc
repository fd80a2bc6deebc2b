#include "platform/fork.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

namespace embstore {

namespace internal {
std::atomic<ForkGeneration> fork_generation{kFirstGeneration};
}

bool run_at_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  if (pthread_atfork(before, in_parent, in_child) != 0) {
    std::fputs("embstore: pthread_atfork failed\n", stderr);
    std::abort();
  }
  return true;
}

namespace {

// Runs before main(), or when the module is loaded, so no table is older. The child has one thread, which
// runs the handler before anything else.
const bool told_of_forks =
    run_at_forks(nullptr, nullptr, [] { internal::fork_generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace
}  // namespace embstore
