// pool_test --list | NAME... : runs the named tests, or all.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "testing.h"

int main(int argc, char** argv) {
  using namespace embstore::pool::testing;
  using embstore::check;
  using embstore::fail;
  std::vector<Test> tests;
  for (const auto group : {row_tests(), checkpoint_tests(), file_tests(), order_tests(), process_tests(),
                           thread_tests(), random_tests(), power_tests()}) {
    tests.insert(tests.end(), group.begin(), group.end());
  }
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Test& test : tests) std::printf("%s\n", test.name);
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const Test& test : tests) known = known || std::strcmp(test.name, argv[i]) == 0;
    check(known, std::string("there is no test ") + argv[i]);
  }
  for (const Test& test : tests) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(test.name, argv[i]) == 0;
    if (!wanted) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(std::string(test.name) + ": " + error.what());
    }
  }
  std::printf("held: %zu tests\n", tests.size());
  return 0;
}
