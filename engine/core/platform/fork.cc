#include "platform/fork.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

namespace embstore {

namespace internal {
std::atomic<ForkGeneration> fork_generation{1};
}

namespace {

// Before main(), or when the module is loaded: so no table is older. In the child there is one thread, and it
// runs this before anything else.
const bool told_of_forks = [] {
  const int refused = pthread_atfork(
      nullptr, nullptr, [] { internal::fork_generation.fetch_add(1, std::memory_order_relaxed); });
  if (refused != 0) {  // no memory for a list entry
    std::fputs("embstore: pthread_atfork failed\n", stderr);
    std::abort();
  }
  return true;
}();

}  // namespace
}  // namespace embstore
