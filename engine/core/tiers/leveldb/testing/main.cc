// leveldb_tier_test: what the LevelDB tier keeps, gives back and refuses; with arguments, one of its other processes.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tiers/leveldb/testing/testing.h"

// LevelDB is not built with the sanitizer, which therefore doesn't see how its threads agree: nor that a writer who
// takes others' batches along may read them.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libleveldb.so\nrace:leveldb::\nrace:rows_are_made_durable_whoever_writes\n";
}

int main(int count, char** arguments) {
  using namespace embstore;
  const std::string what = count > 2 ? arguments[1] : "";
  if (what == "hold") return hold_a_database(arguments[2]);
  if (what == "leave") return leave_a_database(arguments[2]);
  if (what == "train") return train_until_killed(arguments[2], std::strtoull(arguments[3], nullptr, 10));
  test_rows();
  test_following();
  test_refusals();
  test_random_sequences();
  test_kills();
  std::printf("held: the LevelDB tier\n");
  return 0;
}
