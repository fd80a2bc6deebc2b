// Copies out of mapped files that survive an unreadable page: the system reports an error of the medium, or a
// file that another program truncated, by SIGBUS, which otherwise ends the process.
#pragma once

#include <cstddef>

namespace embstore::medium {

// The bytes that a copy is about to read. Volatile: the signal handler reads it.
struct GuardedRange {
  const std::byte* volatile begin = nullptr;
  const std::byte* volatile end = nullptr;
};

// Calls copy(argument, range). Returns false if a page of `range` couldn't be read, so that the copy didn't
// finish. `copy` sets the range before each read, and state that it must leave behind is volatile.
// REQUIRES: catch_bus_errors() was called; `copy` has nothing to destroy and allocates nothing; no other
// guarded copy is under way on this thread.
bool guarded_copy(void (*copy)(void* argument, GuardedRange& range), void* argument);

// Installs the SIGBUS handler of this process's guarded copies, which passes every other SIGBUS to the
// handlers that were installed before. Call it again from time to time: other code may have replaced the
// handler.
void catch_bus_errors();

}  // namespace embstore::medium
