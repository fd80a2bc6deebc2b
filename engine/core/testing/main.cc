// PROGRAM [--list | NAME...]: lists the tests, or runs the named ones (default: all).
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "testing/tests.h"

int main(int argc, char** argv) {
  using namespace embstore;
  std::vector<std::string> wanted(argv + 1, argv + argc);
  if (wanted == std::vector<std::string>{"--list"}) {
    for (const Test& test : tests()) std::printf("%s\n", test.name);
    return 0;
  }
  if (wanted.empty()) {
    for (const Test& test : tests()) wanted.emplace_back(test.name);
  }
  for (const std::string& name : wanted) {
    const auto test =
        std::find_if(tests().begin(), tests().end(), [&](const Test& some) { return some.name == name; });
    check(test != tests().end(), "there is no test " + name);
    std::printf("%s\n", test->name);
    std::fflush(stdout);
    try {
      test->run();
    } catch (const std::exception& error) {
      fail(std::string(test->name) + ": " + error.what());
    }
  }
  std::printf("held: %zu tests\n", wanted.size());
  return 0;
}
