// Databases that aren't what the pool says, or aren't whole: errors that name them.
#include <filesystem>
#include <fstream>

#include "testing/check.h"
#include "tiers/leveldb/leveldb_manifest.h"
#include "tiers/leveldb/testing/followed_table.h"
#include "tiers/leveldb/testing/testing.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

using leveldb::testing::FollowedTable;
using leveldb::testing::kAdagrad;

std::vector<int64_t> some_keys() {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < 3000; ++key) keys.push_back(key);
  return keys;
}

// A closed database with checkpoints 1 and 2, and dead places of 2.
std::vector<CheckpointName> make_database(const TemporaryDirectory& directory) {
  FollowedTable table(directory / "db", directory / "pool");
  table.write(some_keys(), 1);
  table.commit(table.begin());
  table.erase(std::vector<int64_t>{7});
  table.commit(table.begin());
  return table.kept;
}

template <class Call>
void expect(const std::string& path, const std::string& part, Call call,
            ErrorKind kind = ErrorKind::kStorage) {
  const std::string message = error_of(kind, call);
  check(message.starts_with(path + ": ") && message.find(part) != std::string::npos,
        "'" + part + "' isn't in '" + message + "'");
}

void take_up(const std::string& path, std::vector<CheckpointName> kept, const std::string& table = "var",
             const std::string& optimizer = "adagrad") {
  LevelDbTier tier(table, leveldb::testing::layout(), path, LevelDbTier::FollowsCheckpoints{optimizer});
  tier.take_up(kept);
}

void what_the_pool_has_must_be_there() {
  const TemporaryDirectory directory;
  const std::string path = directory / "db";
  const std::vector<CheckpointName> kept = make_database(directory);
  expect(path, "checkpoint 3 of table 'var' isn't there", [&] { take_up(path, {kept[0], {3, kept[1].id}}); });
  expect(path, "is another one of that number", [&] { take_up(path, {kept[0], {2, kept[0].id}}); });
  expect(path, "optimizer 'adagrad'", [&] { take_up(path, kept, "var", "adam"); });
  expect(path, "of table 'other' isn't there", [&] { take_up(path, kept, "other"); });
  expect(path, "put key k into partition k modulo", [&] { take_up(path, kept, "var by hash"); });
  expect(path, "dim 5 with 2 optimizer slots", [&] { LevelDbTier("var", RowLayout(6, 2), path, kAdagrad); });
  FollowedTable table(path, directory / "pool");  // nothing has changed
  table.restore(2, 2);
  expect(path, "isn't there", [&] { table.tier->restore({9, {}}, 1, nullptr); });
}

void rows_of_the_process_and_of_checkpoints_do_not_mix() {
  const TemporaryDirectory directory;
  const std::string path = directory / "db";
  const std::vector<CheckpointName> kept = make_database(directory);
  expect(path, "rows of durable checkpoints", [&] { LevelDbTier("var", leveldb::testing::layout(), path); });
  {
    FollowedTable table(path, directory / "pool");
    table.restore(2, 1);
    expect(
        path, "in use by another variable", [&] { LevelDbTier("b", leveldb::testing::layout(), path); },
        ErrorKind::kInUse);
  }
  AnotherProcess({"leave", directory / "left"}).end();
  expect(directory / "left", "a variable without durability",
         [&] { LevelDbTier("var", RowLayout(1, 0), directory / "left", kAdagrad); });
}

void damage_is_told() {
  const TemporaryDirectory directory;
  const std::string path = directory / "db";
  const std::vector<CheckpointName> kept = make_database(directory);
  fs::copy(path, directory / "whole");
  const auto afresh = [&] {
    fs::remove_all(path);
    fs::copy(directory / "whole", path);
  };
  const auto with_records = [&](auto change) {
    afresh();
    LevelDbDatabase database(path, leveldb::testing::layout(), {}, LevelDbRows::kOfCheckpoints);
    LevelDbDatabase::Batch batch = database.make_batch();
    change(database, batch);
    database.write(batch);
  };
  std::vector<std::string> rows, dead, checkpoints;
  with_records([&](LevelDbDatabase& database, LevelDbDatabase::Batch&) {
    const auto gather = [&](const char* prefix, std::vector<std::string>& keys) {
      database.scan(prefix, [&](std::string_view key, std::string_view) { keys.emplace_back(key); });
    };
    gather("r", rows);
    gather("d", dead);
    gather("c", checkpoints);
  });
  check(rows.size() == 3000 && dead.size() == 1 && checkpoints.size() == 2,
        "the records are what FORMAT.md says");
  const auto flipped = [](LevelDbDatabase& database, const std::string& key, size_t byte) {
    std::string value(database.get(key).bytes());
    value[byte] = static_cast<char>(value[byte] ^ 4);
    return value;
  };
  const auto restore_all = [&] {
    FollowedTable table(path, directory / "pool");
    table.restore(2, 2);
    table.restore(1, 2);
  };

  for (size_t byte = 0; byte < 56; ++byte) {
    with_records([&](auto& database, auto& batch) {
      database.put(batch, checkpoints[1], flipped(database, checkpoints[1], byte));
    });
    expect(path, "checkpoint 2 of table 'var' is damaged", restore_all);
  }
  for (const size_t byte : {0, 16, 24, 30}) {
    with_records(
        [&](auto& database, auto& batch) { database.put(batch, dead[0], flipped(database, dead[0], byte)); });
    expect(path, "checkpoint 2 of table 'var' is damaged: part 0", restore_all);
  }
  with_records([&](auto& database, auto& batch) { database.remove(batch, dead[0]); });
  expect(path, "part 0 of its dead places", restore_all);
  for (const size_t byte : {0, 9, 60, 120}) {
    with_records([&](auto& database, auto& batch) {
      database.put(batch, rows[100], flipped(database, rows[100], byte));
    });
    expect(path, "the row of key 100 in checkpoint", restore_all);
  }
  with_records([&](auto& database, auto& batch) { database.remove(batch, rows[100]); });
  expect(path, "is damaged: it has 2998 rows of 2999", restore_all);
  with_records(
      [&](auto& database, auto& batch) { database.put(batch, "format", flipped(database, "format", 13)); });
  expect(path, "format record", restore_all);
  with_records(
      [&](auto& database, auto& batch) { database.put(batch, "tvar", flipped(database, "tvar", 5)); });
  expect(path, "table 'var' isn't whole", restore_all);
  // A file of rows.
  afresh();
  for (const auto& file : fs::directory_iterator(path)) {
    if (file.path().extension() != ".ldb" || file.file_size() < 10000) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(5000);
    bytes.put('\x55').put('\xaa').put('\x55');
  }
  expect(path, "", restore_all);
  afresh();
  restore_all();
}

// LevelDB tells no errors where it's to bring its rows to the medium.
void a_commit_that_does_not_reach_the_medium_fails() {
  const TemporaryDirectory directory;
  FollowedTable table(directory / "db", directory / "pool");
  table.write(some_keys(), 1);
  table.commit(table.begin());
  table.write(std::vector<int64_t>{1, 2, 3}, 2);
  const uint64_t number = table.begin();
  // The log that LevelDB would start can't be made.
  std::vector<std::string> in_the_way;
  for (int file = 4; file < 40; ++file) {
    const std::string digits = std::to_string(file);
    const std::string log = directory / ("db/" + std::string(6 - digits.size(), '0') + digits + ".log");
    if (!fs::exists(log) && fs::create_directory(log)) in_the_way.push_back(log);
  }
  expect(directory / "db", "LevelDB keeps its log", [&] { table.commit(number); });
  for (const std::string& log : in_the_way) fs::remove(log);
  table.commit(number);
  table.reopen();
  table.restore(number, 1);
}

// The log format is LevelDB's: what it wrote is whole, and a prefix is up to a record.
void a_manifest_s_whole_records_are_counted() {
  const TemporaryDirectory directory;
  make_database(directory);
  for (const auto& file : fs::directory_iterator(directory / "db")) {
    if (!file.path().filename().string().starts_with("MANIFEST-")) continue;
    std::ifstream stream(file.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    const LevelDbLogExtent all = extent_of_leveldb_log(bytes);
    check(all.whole_bytes == bytes.size() && all.last_begins > 0, "all of it is whole");
    const size_t shorter =
        extent_of_leveldb_log(std::string_view(bytes).substr(0, bytes.size() - 1)).whole_bytes;
    check(shorter == all.last_begins, "a torn record isn't");
    bytes[shorter + 9] = static_cast<char>(bytes[shorter + 9] ^ 1);
    check(extent_of_leveldb_log(bytes).whole_bytes == shorter, "nor one that has changed");
    return;
  }
  fail("there's a manifest");
}

void an_opening_that_was_cut_short_is_made_good() {
  const TemporaryDirectory directory;
  const std::string path = directory / "db";
  make_database(directory);
  std::string current;
  std::getline(std::ifstream(path + "/CURRENT") >> std::ws, current);
  // The new manifest's name was lost, the old one's removal wasn't.
  fs::copy(path + "/" + current, path + "/kept-" + current);
  fs::remove(path + "/" + current);
  {
    FollowedTable(path, directory / "pool").restore(2, 1);
  }
  check(!fs::exists(path + "/kept-" + current), "the copy goes");
  // The manifest's last change was under way.
  std::getline(std::ifstream(path + "/CURRENT") >> std::ws, current);
  std::ofstream(path + "/" + current, std::ios::app | std::ios::binary)
      << "half a record that LevelDB can't read";
  {
    FollowedTable(path, directory / "pool").restore(2, 1);
  }
}

void a_database_that_was_being_made_or_removed_is_made_anew() {
  const TemporaryDirectory directory;
  const std::string path = directory / "db";
  make_database(directory);
  fs::remove(directory / "pool");
  std::ofstream(path + "/NO-CHECKPOINT");
  std::ofstream(path + "/CURRENT") << "MANIFEST-999999\n";
  FollowedTable table(path, directory / "pool");
  table.write(some_keys(), 1);
  table.commit(table.begin());
  table.close();
  // Of rows that go with the process, too.
  std::ofstream(path + "/NO-CHECKPOINT");
  {
    const LevelDbTier tier("var", leveldb::testing::layout(), path);
  }
  check(!fs::exists(path), "and removed in the end");
}

}  // namespace

void test_refusals() {
  what_the_pool_has_must_be_there();
  rows_of_the_process_and_of_checkpoints_do_not_mix();
  damage_is_told();
  a_commit_that_does_not_reach_the_medium_fails();
  a_manifest_s_whole_records_are_counted();
  an_opening_that_was_cut_short_is_made_good();
  a_database_that_was_being_made_or_removed_is_made_anew();
}

}  // namespace embstore
