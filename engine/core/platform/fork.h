// Tells whether fork() has made an object unusable. A child has copies of the parent's memory, descriptors
// and locks, as they were at one moment, but none of its threads: a table made before the fork can't be used
// in the child, and must not be, since its files and mappings still belong to the parent.
#pragma once

#include <atomic>
#include <cstdint>

namespace embstore {

// The generation of a process is one more than that of the process that it was forked from.
using ForkGeneration = uint32_t;
// The generation of the process that loaded the core.
inline constexpr ForkGeneration kFirstGeneration = 1;

namespace internal {
extern std::atomic<ForkGeneration> fork_generation;
}

inline ForkGeneration fork_generation() { return internal::fork_generation.load(std::memory_order_relaxed); }

// Returns whether an object made in that generation belongs to a process that this one was forked from.
inline bool inherited(ForkGeneration made_in) { return made_in != fork_generation(); }

// Calls pthread_atfork(). For initialisers of static objects: ends the process if there is no memory for it.
bool run_at_forks(void (*before)(), void (*in_parent)(), void (*in_child)());

}  // namespace embstore
