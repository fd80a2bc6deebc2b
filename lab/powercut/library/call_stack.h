// Where a call comes from: return addresses as module+offset, which stay the same from run to run, or lines of
// Python where the interpreter made the call.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace powercut {

// The innermost first, from the one that `return_address` is in.
using CallStack = std::vector<std::string>;

CallStack call_stack(void* return_address, size_t frames);

}  // namespace powercut
