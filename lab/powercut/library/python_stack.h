// The lines of Python that the calling thread is in, if the program is Python.
#pragma once

#include <cstddef>

#include "call_stack.h"

namespace powercut {

// Returns whether an address is in the interpreter itself.
bool is_in_python(void* address);

// Returns "path:line function", innermost first. Takes the interpreter's lock, which its own system calls
// don't hold. REQUIRES: the interpreter itself makes the call, and this library holds no lock.
CallStack python_stack(size_t frames);

}  // namespace powercut
