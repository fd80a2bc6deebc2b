// leveldb_tier_test: what the LevelDB tier keeps, gives back and refuses; with arguments, one of its other processes.
#include <cstdio>
#include <string>

#include "tiers/leveldb/testing/testing.h"

// LevelDB is not built with the sanitizer, which therefore doesn't see how its threads agree.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libleveldb.so\nrace:leveldb::\n";
}

int main(int count, char** arguments) {
  using namespace embstore;
  const std::string what = count > 2 ? arguments[1] : "";
  if (what == "hold") return hold_a_database(arguments[2]);
  if (what == "leave") return leave_a_database(arguments[2]);
  test_rows();
  std::printf("held: the LevelDB tier\n");
  return 0;
}
