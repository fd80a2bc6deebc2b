// What a tier that follows checkpoints keeps, and lets go.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"
#include "tiers/leveldb/testing/followed_table.h"
#include "tiers/leveldb/testing/testing.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

using leveldb::testing::FollowedTable;

std::vector<int64_t> keys_from(int64_t first, size_t count) {
  std::vector<int64_t> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

bool is_there(const LevelDbTier& tier, const Place& place) {
  RowBatch rows(leveldb::testing::layout());
  tier.read(std::span(&place, 1), rows);
  return rows.header(0).key == place.key;
}

Place place_of(const FollowedTable& table, int64_t key) { return {key, table.index.at(key).slot}; }

void a_checkpoint_outlives_its_process(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(-50, 100), 1);
  table.erase(keys_from(0, 10));
  const uint64_t number = table.begin();
  check(table.tier->checkpoint_rows(number) == 0, "a pending checkpoint isn't kept");
  table.write(keys_from(0, 100), 2);
  table.commit(number);
  table.erase(keys_from(-50, 20));
  table.reopen();
  check(table.tier->stats().rows == 0, "nothing is live before it's restored");
  table.restore(number, 1);
  check(table.index.size() == 90 && table.index.at(20).version == 1, "as it was when it was begun");
}

void without_a_checkpoint_nothing_stays(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(0, 10), 1);
  table.begin();
  check(fs::exists(directory / "db/NO-CHECKPOINT"), "nothing was promised");
  table.close();
  check(!fs::exists(directory / "db"), "the files are gone");
  table.reopen();
  table.write(keys_from(0, 10), 1);
  const uint64_t number = table.begin();
  table.commit(number);
  check(!fs::exists(directory / "db/NO-CHECKPOINT"), "now something was");
  table.close();
  check(fs::exists(directory / "db"), "the files stay");
  table.reopen();
  table.start_over();
  table.close();
  check(!fs::exists(directory / "db"), "until the last checkpoint goes");
}

void places_stay_as_long_as_a_checkpoint_needs_them(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  LevelDbTier& tier = *table.tier;
  table.write(keys_from(0, 10), 1);
  const Place in_both = place_of(table, 1), in_first = place_of(table, 2);
  const uint64_t first = table.begin();
  table.erase(std::vector<int64_t>{2});
  table.write(std::vector<int64_t>{20, 21}, 1);
  const Place in_second = place_of(table, 20), in_none = place_of(table, 21);
  table.erase(std::vector<int64_t>{21});
  tier.drain();
  check(is_there(tier, in_first), "a pending checkpoint needs what it was begun with");
  check(!is_there(tier, in_none), "what came and went since isn't needed");
  const uint64_t second = table.begin();
  table.commit(first);
  table.commit(second);
  table.erase(std::vector<int64_t>{1, 20});
  tier.drain();
  check(is_there(tier, in_both) && is_there(tier, in_first) && is_there(tier, in_second),
        "kept ones need theirs");
  table.drop(first);
  tier.drain();
  check(is_there(tier, in_both) && !is_there(tier, in_first) && is_there(tier, in_second),
        "what the dropped one alone needed goes");
  table.restore(second, 1);
  table.drop(second);
  table.erase(std::vector<int64_t>{1, 20});
  tier.drain();
  check(!is_there(tier, in_both) && !is_there(tier, in_second), "then the rest");
}

void an_abandoned_timeline_does_not_come_back(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(0, 10), 1);
  const uint64_t first = table.begin();
  table.commit(first);
  table.write(keys_from(0, 20), 2);  // never in a checkpoint that is kept
  const Place abandoned = place_of(table, 15);
  const uint64_t second = table.begin();
  table.commit(second);
  table.reopen();
  table.restore(first, 1);
  table.drop_newer_than(first);
  const uint64_t third = table.begin();
  check(is_there(*table.tier, abandoned), "its records may be there still");
  table.commit(third);
  table.tier->drain();
  check(!is_there(*table.tier, abandoned), "until they are deleted");
  table.reopen();
  table.restore(third, 1);
  check(table.index.size() == 10 && table.index.at(5).version == 1, "none is taken for a row");
}

void many_dead_places_are_several_records(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(-80000, 160000), 1);
  const uint64_t first = table.begin();
  table.commit(first);
  table.erase(keys_from(-70000, 140000));
  const uint64_t second = table.begin();
  table.commit(second);
  table.reopen();
  table.restore(second, 3);
  check(table.index.size() == 20000, "what was erased stays erased");
  table.restore(first, 3);
  check(table.index.size() == 160000, "and is there in the one before");
}

// The number of a record is told by its slot only until a slot comes again.
void slots_that_come_again_spare_what_is_needed(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(0, 10), 1);
  const uint64_t first = table.begin();
  table.commit(first);
  table.close();
  {
    // As if all slots but a few had been given out since.
    LevelDbDatabase database(directory / "db", leveldb::testing::layout(), {}, LevelDbRows::kOfCheckpoints);
    LevelDbCheckpointRecords records(database, 0, "var");
    LevelDbCheckpoint is = records.get(table.kept[0]);
    is.sequence_end = LevelDbTier::kSlots - 3;
    records.put(is, {});
    database.make_durable();
  }
  table.reopen();
  table.restore(first, 1);
  const Place needed = place_of(table, 4);
  table.erase(std::vector<int64_t>{4});
  const uint64_t before = table.tier->reused_places();
  table.write(keys_from(100, 7), 2);  // up to slot 3
  check(table.tier->reused_places() != before, "whoever reads by place is told that places come again");
  table.write(std::vector<int64_t>{4}, 3);
  check(table.index.at(4).slot != needed.slot && is_there(*table.tier, needed),
        "a place in need isn't given out");
  const Place came = place_of(table, 100 + 6);
  table.erase(std::vector<int64_t>{106, 0});
  table.tier->drain();
  check(!is_there(*table.tier, came) && is_there(*table.tier, {0, 0}),
        "what came since is told from what was there");
  table.restore(first, 1);
}

// What LevelDB's logs have isn't on the medium for sure: it syncs none.
void a_committed_checkpoint_needs_no_log(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  for (uint64_t round = 1; round <= 3; ++round) {
    table.write(keys_from(static_cast<int64_t>(round) * 5, 20), round);
    table.erase(keys_from(0, round * 4));
    table.tier->drain();
    const uint64_t number = table.begin();
    table.commit(number);
    const fs::path copy = directory / ("copy" + std::to_string(round));
    fs::create_directory(copy);
    for (const auto& file : fs::directory_iterator(directory / "db")) {
      if (file.path().extension() != ".log") fs::copy(file.path(), copy / file.path().filename());
    }
    FollowedTable(copy, directory / "pool").restore(number, 1);
  }
}

// LevelDB leaves out the write that is to make files of its rows when a writer before it in line takes it along.
void rows_are_made_durable_whoever_writes(const TemporaryDirectory& directory) {
  LevelDbDatabase database(directory / "db", leveldb::testing::layout(), {}, LevelDbRows::kOfCheckpoints);
  std::atomic<bool> ends{false};
  std::vector<std::jthread> writers;
  for (char name = 'a'; name < 'd'; ++name) {
    writers.emplace_back([&, name] {
      while (!ends) {
        auto batch = database.make_batch();
        database.put(batch, std::string(1, name), std::string(500, name));
        database.write(batch);
      }
    });
  }
  try {
    for (int time = 0; time < 30; ++time) database.make_durable();
  } catch (...) {
    ends = true;
    throw;
  }
  ends = true;
}

void writers_go_on_while_a_checkpoint_is_committed(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(0, 1000), 1);
  for (uint64_t round = 0; round < 20; ++round) {
    const uint64_t number = table.begin();
    const CheckpointName name{number, table.pending.at(number)};
    std::jthread committing([&] { table.tier->commit_checkpoint(name); });
    for (uint64_t step = 0; step < 10; ++step) {
      table.write(keys_from(static_cast<int64_t>((round * 10 + step) * 7 % 900), 60), round * 10 + step + 2);
    }
    committing.join();
    table.pending.erase(number);
    table.kept.push_back(name);
    if (table.kept.size() > 3) table.drop(table.kept.front().number);
  }
  for (const CheckpointName& kept : std::vector(table.kept)) table.restore(kept.number, 3);
}

void a_restore_that_fails_can_be_tried_again(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(keys_from(0, 9000), 1);
  const uint64_t number = table.begin();
  table.commit(number);
  table.reopen();
  const std::string message = error_of(ErrorKind::kStoreFull, [&] {
    table.tier->restore(table.kept[0], 2, [](std::span<const RowHeader>, std::span<const Slot>) {
      throw Error(ErrorKind::kStoreFull, "no room");
    });
  });
  check(message == "no room" && table.tier->stats().rows == 0, message);
  table.restore(number, 2);
}

}  // namespace

void test_following() {
  a_checkpoint_outlives_its_process(TemporaryDirectory());
  without_a_checkpoint_nothing_stays(TemporaryDirectory());
  places_stay_as_long_as_a_checkpoint_needs_them(TemporaryDirectory());
  an_abandoned_timeline_does_not_come_back(TemporaryDirectory());
  many_dead_places_are_several_records(TemporaryDirectory());
  slots_that_come_again_spare_what_is_needed(TemporaryDirectory());
  a_committed_checkpoint_needs_no_log(TemporaryDirectory());
  rows_are_made_durable_whoever_writes(TemporaryDirectory());
  writers_go_on_while_a_checkpoint_is_committed(TemporaryDirectory());
  a_restore_that_fails_can_be_tried_again(TemporaryDirectory());
}

}  // namespace embstore
