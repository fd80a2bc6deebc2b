// leveldb_cut train FOLDER SEED | check FOLDER: a table that is trained until the power is cut, and a look at what
// is left.
//
// What the pool lists is restored whole: every checkpoint, twice. The list itself is written durably.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "testing/check.h"
#include "tiers/leveldb/testing/followed_table.h"

namespace {

using embstore::check;
using embstore::CheckpointName;
using embstore::leveldb::testing::FollowedTable;
using embstore::leveldb::testing::random_step;

constexpr uint64_t kSteps = 60;

int train(const std::string& folder, uint64_t seed) {
  FollowedTable table(folder + "/db", folder + "/pool");
  if (!table.kept.empty()) table.restore(table.kept.back().number, 2);
  // Another run goes on as nobody did before.
  seed += table.kept.empty() ? 0 : table.kept.back().number * 1000 + table.index.size();
  std::mt19937_64 random(seed);
  for (uint64_t step = 1; step <= kSteps; ++step) random_step(table, random(), seed * 1000 + step);
  return 0;
}

int look(const std::string& folder) {
  FollowedTable table(folder + "/db", folder + "/pool");
  for (const CheckpointName& kept : std::vector(table.kept)) table.restore(kept.number, 2);
  for (size_t i = table.kept.size(); i-- > 0;) table.restore(table.kept[i].number, 1);
  // And it goes on: what comes now isn't mixed up with what was given up.
  if (!table.kept.empty()) {
    table.restore(table.kept.front().number, 1);
    table.drop_newer_than(table.kept.front().number);
  }
  std::mt19937_64 random(1);
  for (uint64_t step = 1; step <= 20; ++step) random_step(table, random(), step);
  while (!table.pending.empty()) table.drop(table.pending.rbegin()->first);
  const uint64_t number = table.begin();
  table.commit(number);
  table.reopen();
  table.restore(number, 2);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 2 ? arguments[1] : "";
  try {
    if (what == "train" && count == 4) return train(arguments[2], std::strtoull(arguments[3], nullptr, 10));
    if (what == "check" && count == 3) return look(arguments[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "leveldb_cut train FOLDER SEED | check FOLDER\n");
  return 2;
}
