// The place that a call comes from: return addresses as module+offset, which are the same in every run, or
// lines of Python if the interpreter made the call.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace powercut {

// Innermost first, beginning with the function that contains `return_address`.
using CallStack = std::vector<std::string>;

CallStack call_stack(void* return_address, size_t frames);

}  // namespace powercut
