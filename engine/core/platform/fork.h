// What fork() does to what the core holds. A child has copies of the parent's memory, descriptors and locks,
// as they were in one moment, but none of its threads: a table made before the fork can't be used in the
// child, and must not be, since its files and mappings are the parent's still.
#pragma once

#include <atomic>
#include <cstdint>

namespace embstore {

// Of a process: one more than that of the process that it was forked from.
using ForkGeneration = uint32_t;
// Of a process that nobody has forked since it loaded the core.
inline constexpr ForkGeneration kFirstGeneration = 1;

namespace internal {
extern std::atomic<ForkGeneration> fork_generation;
}

inline ForkGeneration fork_generation() { return internal::fork_generation.load(std::memory_order_relaxed); }

// Whether what was made in that generation belongs to a process that this one was forked from.
inline bool inherited(ForkGeneration made_in) { return made_in != fork_generation(); }

// As pthread_atfork(), for initialisers of static objects: ends the process where there is no memory for it.
bool run_at_forks(void (*before)(), void (*in_parent)(), void (*in_child)());

}  // namespace embstore
