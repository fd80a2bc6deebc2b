// The lines of Python that the calling thread is in, where the program is Python.
#pragma once

#include <cstddef>

#include "call_stack.h"

namespace powercut {

// Whether an address is in the interpreter itself.
bool is_in_python(void* address);

// "path:line function", the innermost first. Takes the interpreter's lock, which its own calls into the system
// don't hold: so only for calls that the interpreter itself makes, and without a lock of ours.
CallStack python_stack(size_t frames);

}  // namespace powercut
