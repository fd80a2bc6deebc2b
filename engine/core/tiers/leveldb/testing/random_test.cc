// Random lives of tables, against what each checkpoint had when it was begun.
#include <random>
#include <string>

#include "testing/check.h"
#include "tiers/leveldb/testing/followed_table.h"
#include "tiers/leveldb/testing/testing.h"

namespace embstore {
namespace {

using leveldb::testing::FollowedTable;
using leveldb::testing::random_step;

void a_table_lives(const TemporaryDirectory& directory, uint64_t seed) {
  tested_case() = "seed " + std::to_string(seed);
  std::mt19937_64 random(seed);
  FollowedTable table(directory / "db", directory / "pool");
  for (uint64_t step = 1; step <= 250; ++step) random_step(table, random(), step);
  table.check_all();
  table.reopen();
  for (const CheckpointName& kept : std::vector(table.kept)) table.restore(kept.number, 2);
  tested_case().clear();
}

void two_tables_of_one_database_live_by_themselves(const TemporaryDirectory& directory, uint64_t seed) {
  tested_case() = "two tables, seed " + std::to_string(seed);
  std::mt19937_64 random(seed);
  FollowedTable first(directory / "db", directory / "first", "var.part0 of 2");
  FollowedTable second(directory / "db", directory / "second", "var.part1 of 2");
  for (uint64_t step = 1; step <= 250; ++step) {
    random_step(first, random(), step);
    random_step(second, random(), step + 1000);
  }
  for (FollowedTable* table : {&first, &second}) table->check_all();
  first.close();
  second.close();
  // In the other order: each finds its own.
  second.reopen();
  first.reopen();
  for (FollowedTable* table : {&first, &second}) {
    for (const CheckpointName& kept : std::vector(table->kept)) table->restore(kept.number, 2);
  }
  tested_case().clear();
}

}  // namespace

void test_random_sequences() {
  for (uint64_t seed = 1; seed <= scenes(12); ++seed) a_table_lives(TemporaryDirectory(), seed);
  for (uint64_t seed = 1; seed <= scenes(4); ++seed) {
    two_tables_of_one_database_live_by_themselves(TemporaryDirectory(), seed);
  }
}

}  // namespace embstore
