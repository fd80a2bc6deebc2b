// The named tests of a program whose main() is testing/main.cc.
#pragma once

#include <string>
#include <vector>

#include "testing/check.h"

namespace embstore {

struct Test {
  const char* name;
  void (*run)();
};
// The tests of all files of the program.
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};
#define TEST(name)                                    \
  void name();                                        \
  const Registration registered_##name{#name, &name}; \
  void name()

// Fails unless `call` throws an Error of `kind` whose message has `part` in it.
template <class Call>
void check_throws(ErrorKind kind, const std::string& part, const Call& call) {
  const std::string message = error_of(kind, call);
  check(message.find(part) != std::string::npos, "\"" + part + "\" is not in: " + message);
}

}  // namespace embstore
