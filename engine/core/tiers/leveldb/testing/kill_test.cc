// Processes that are killed at any time: the next finds what the pool has.
#include <unistd.h>

#include <random>
#include <string>

#include "testing/check.h"
#include "tiers/leveldb/testing/followed_table.h"
#include "tiers/leveldb/testing/testing.h"

namespace embstore {

using leveldb::testing::FollowedTable;
using leveldb::testing::random_step;

int train_until_killed(const std::string& folder, uint64_t seed) {
  std::mt19937_64 random(seed);
  FollowedTable table(folder + "/db", folder + "/pool");
  if (!table.kept.empty()) table.restore(table.kept.back().number, 2);
  check(::write(STDOUT_FILENO, "x", 1) == 1, "the parent listens");
  for (uint64_t step = 1;; ++step) random_step(table, random(), seed * 100000 + step);
}

void test_kills() {
  const TemporaryDirectory directory;
  std::mt19937_64 random(7);
  size_t most_kept = 0;
  for (uint64_t round = 1; round <= scenes(25); ++round) {
    AnotherProcess process({"train", directory.path(), std::to_string(round)});
    // Some while they open, most while they train.
    if (round % 5 != 0)
      check(process.answers(), "a killed process's checkpoint is restored in round " + std::to_string(round));
    usleep(static_cast<useconds_t>(random() % 80000));
    process.kill();
    FollowedTable table(directory / "db", directory / "pool");
    for (const CheckpointName& kept : std::vector(table.kept)) table.restore(kept.number, 1);
    most_kept = std::max(most_kept, table.kept.size());
  }
  check(most_kept > 1, "there were checkpoints to restore");
}

}  // namespace embstore
