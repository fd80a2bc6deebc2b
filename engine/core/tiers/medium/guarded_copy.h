// Copies out of mapped files that survive a page that can't be read: the system tells of an error of the
// medium, or of a file that somebody cut off, by SIGBUS, which otherwise ends the process.
#pragma once

#include <cstddef>

namespace embstore::medium {

// What a copy is about to read. Volatile: the signal's handler looks at it.
struct GuardedRange {
  const std::byte* volatile begin = nullptr;
  const std::byte* volatile end = nullptr;
};

// Calls copy(argument, range) and says whether it came to its end; if not, a page of `range` couldn't be
// read. `copy` sets the range before each read, and what it must leave behind is volatile.
// REQUIRES: catch_bus_errors() was called; `copy` has nothing to destroy and allocates nothing; no other
// guarded copy is under way on this thread.
bool guarded_copy(void (*copy)(void* argument, GuardedRange& range), void* argument);

// Has SIGBUS handled by this process's guarded copies, and every one that isn't theirs by whoever handled it
// before. To be called again from time to time: others may have put themselves in its place.
void catch_bus_errors();

}  // namespace embstore::medium
