// leveldb_cut train FOLDER SEED | check FOLDER: tables of one database that are trained until the power is cut, and a
// look at what is left.
//
// Of each, what its pool lists is restored whole: every checkpoint, twice. The list itself is written durably.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "testing/check.h"
#include "tiers/leveldb/testing/followed_table.h"

namespace {

using embstore::CheckpointName;
using embstore::leveldb::testing::FollowedTable;
using embstore::leveldb::testing::random_step;

constexpr uint64_t kSteps = 60;

// Of an odd seed, one table alone, whose database is closed and opened on the way.
std::vector<std::unique_ptr<FollowedTable>> tables_of(const std::string& folder, size_t count) {
  std::vector<std::unique_ptr<FollowedTable>> tables;
  for (size_t i = 0; i < count; ++i) {
    const std::string part = "part" + std::to_string(i);
    tables.push_back(std::make_unique<FollowedTable>(folder + "/db", folder + "/" + part, part));
  }
  return tables;
}

int train(const std::string& folder, uint64_t seed) {
  const auto tables = tables_of(folder, seed % 2 == 0 ? 2 : 1);
  for (const auto& table : tables) {
    if (table->kept.empty()) continue;
    table->restore(table->kept.back().number, 2);
    // Another run goes on as nobody did before.
    seed += table->kept.back().number * 1000 + table->index.size();
  }
  std::mt19937_64 random(seed);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    random_step(*tables[random() % tables.size()], random(), seed * 1000 + step);
  }
  return 0;
}

void look_at(FollowedTable& table) {
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
  table.commit(table.begin());
}

int look(const std::string& folder) {
  {
    const auto tables = tables_of(folder, 2);
    for (const auto& table : tables) look_at(*table);
  }
  for (const auto& table : tables_of(folder, 2)) table->restore(table->kept.back().number, 2);
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
