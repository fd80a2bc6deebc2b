// What ends the program where it can't be followed: a wrong verdict is worse than none.
#pragma once

#include <string>

namespace powercut {

[[noreturn]] void complain(const std::string& session, const std::string& what);

}  // namespace powercut
