// Ends a program that can't be followed, with a message: a wrong verdict is worse than none.
#pragma once

#include <string>

namespace powercut {

[[noreturn]] void complain(const std::string& session, const std::string& what);

}  // namespace powercut
