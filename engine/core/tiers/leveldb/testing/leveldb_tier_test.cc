// Tests of the LevelDB tier: the rows that it keeps and returns, compared with a plain map; its refusals; and
// use by many threads. With arguments, this program is another process with a database.
#include "tiers/leveldb/leveldb_tier.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "store/index/index.h"
#include "testing/check.h"
#include "testing/child.h"
#include "testing/files.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();

const RowLayout kLayout(5, 2);

void fill(RowBatch& rows, size_t i, int64_t key, uint64_t seed) {
  rows.header(i) = {key, seed, static_cast<int64_t>(seed) - 7, seed + 1, seed + 2, seed + 3};
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    rows.row(i)[f] = static_cast<float>((hash_key(key) + seed * 1000 + f) >> 40);
  }
}

bool is_filled(const RowBatch& rows, size_t i, int64_t key, uint64_t seed) {
  RowBatch expected(kLayout);
  expected.resize(1);
  fill(expected, 0, key, seed);
  return std::memcmp(&expected.header(0), &rows.header(i), sizeof(RowHeader)) == 0 &&
         std::memcmp(expected.row(0), rows.row(i), kLayout.row_bytes()) == 0;
}

std::vector<Place> write(LevelDbTier& tier, const std::vector<int64_t>& keys, uint64_t seed) {
  RowBatch rows(kLayout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill(rows, i, keys[i], seed);
  std::vector<Slot> slots(keys.size());
  tier.write(rows, slots);
  std::vector<Place> places;
  for (size_t i = 0; i < keys.size(); ++i) places.push_back({keys[i], slots[i]});
  return places;
}

void expect_rows(const LevelDbTier& tier, const std::vector<Place>& places, uint64_t seed) {
  RowBatch rows(kLayout);
  tier.read(places, rows);
  check(rows.size() == places.size(), "read() resizes the batch");
  for (size_t i = 0; i < places.size(); ++i) {
    check(is_filled(rows, i, places[i].key, seed), "a row reads back as it was written");
  }
}

bool is_there(const LevelDbTier& tier, const Place& place) {
  RowBatch rows(kLayout);
  tier.read(std::span(&place, 1), rows);
  return rows.header(0).key == place.key;
}

void rows_read_back_in_the_order_that_was_asked_for(const std::string& path) {
  LevelDbTier tier("var", kLayout, path);
  std::vector<Place> places = write(tier, {5, -5, 0, kGreatest, kMin, -1}, 1);
  expect_rows(tier, places, 1);
  std::reverse(places.begin(), places.end());
  places.push_back(places[2]);
  expect_rows(tier, places, 1);
  check(tier.stats().rows == 6, "rows are counted");
  check(tier.stats().row_bytes == kLayout.row_bytes(), "row_bytes are those of the floats");
  check(tier.stats().path == path && tier.stats().mapped_bytes > 0, "stats() names the files");
}

void a_row_that_comes_back_outlives_its_erased_place(const std::string& path) {
  LevelDbTier tier("var", kLayout, path);
  const Place first = write(tier, {1}, 1)[0];
  tier.erase(std::span(&first, 1));
  check(tier.stats().rows == 0 && is_there(tier, first), "an erasure waits");
  const Place second = write(tier, {1}, 2)[0];
  check(!is_there(tier, first), "a write takes the erasures along");

  std::vector<int64_t> many = keys_from(100, size_t{1} << 16);
  const std::vector<Place> leaving = write(tier, many, 1);
  tier.erase(std::span(leaving).first(1));
  tier.compact();
  check(is_there(tier, leaving[0]), "a few erasures wait for a write");
  tier.erase(std::span(leaving).subspan(1));
  tier.compact();
  check(!is_there(tier, leaving[0]) && !is_there(tier, leaving.back()), "many don't");
  expect_rows(tier, {second}, 2);
  check(!is_there(tier, first), "the erased place is gone");

  // One key has two places, as after an eviction by two threads; the one that lost is erased.
  const Place third = write(tier, {1}, 3)[0];
  expect_rows(tier, {second}, 2);
  expect_rows(tier, {third}, 3);
  tier.erase(std::span(&third, 1));
  tier.drain();
  expect_rows(tier, {second}, 2);
  check(!is_there(tier, third), "drain() deletes what was erased");
  check(tier.stats().rows == 1, "one row is left");
}

// Lets no file grow, as on a full disk.
class NoFileGrows {
 public:
  NoFileGrows() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoFileGrows() { setrlimit(RLIMIT_FSIZE, &before_); }
  NoFileGrows(const NoFileGrows&) = delete;
  NoFileGrows& operator=(const NoFileGrows&) = delete;

 private:
  rlimit before_{};
};

// compact() is called after a change that is already made, for example an update whose rows came up.
void records_that_cannot_be_deleted_are_reported_by_drain_only(const std::string& path) {
  LevelDbTier tier("var", kLayout, path);
  std::vector<int64_t> many = keys_from(100, size_t{1} << 16);
  const std::vector<Place> leaving = write(tier, many, 1);
  const std::vector<Place> staying = write(tier, {1, 2}, 2);
  tier.erase(leaving);
  {
    const NoFileGrows disk_is_full;
    tier.compact();
    tier.compact();
    error_of(ErrorKind::kStorage, [&] { tier.drain(); });
  }
  check(tier.stats().rows == staying.size(), "rows that were erased are gone");
  expect_rows(tier, staying, 2);
}

void tables_share_the_database_of_a_directory(const std::string& path) {
  auto first = std::make_unique<LevelDbTier>("var.part0 of 2", kLayout, path);
  const std::vector<Place> kept = write(*first, {1, 2, 3}, 1);
  {
    // The same directory in another spelling.
    LevelDbTier second("var.part1 of 2", kLayout, path + "/../" + fs::path(path).filename().string());
    const std::vector<Place> places = write(second, {1, 2, 3}, 2);
    check(places[0].slot == kept[0].slot, "the same keys at the same places");
    expect_rows(*first, kept, 1);
    expect_rows(second, places, 2);
    second.erase(places);
    second.drain();
    expect_rows(*first, kept, 1);
    check(!is_there(second, places[1]) && second.stats().rows == 0 && first->stats().rows == 3,
          "each has its own rows");
    check(second.stats().mapped_bytes <= first->stats().mapped_bytes &&
              second.stats().mapped_bytes * 2 <= bytes_in(path),
          "each says its share of the files");

    const std::string twice =
        error_of(ErrorKind::kInUse, [&] { LevelDbTier("var.part0 of 2", kLayout, path); });
    check(twice.starts_with(path + ": is in use by another variable"), twice);
    const std::string other = error_of(ErrorKind::kInUse, [&] { LevelDbTier("var", RowLayout(6, 2), path); });
    check(other.starts_with(path + ": is in use by another variable"), other);
    const std::string slots = error_of(ErrorKind::kInUse, [&] { LevelDbTier("var", RowLayout(5, 1), path); });
    check(slots.starts_with(path + ": is in use by another variable"), slots);
    write(second, {7}, 5);
  }
  {
    LevelDbTier again("var.part1 of 2", kLayout, path);
    check(!is_there(again, {7, 3}) && !is_there(again, {1, 0}), "who joins again starts empty");
    expect_rows(*first, kept, 1);
    first.reset();
    expect_rows(again, write(again, {8}, 1), 1);
  }
  check(!fs::exists(path), "the last one removes the files");
}

void files_of_others_are_refused(const TemporaryDirectory& directory) {
  const std::string path = directory / "refused";
  const auto refusal = [&] {
    const std::string message = error_of(ErrorKind::kStorage, [&] { LevelDbTier("var", kLayout, path); });
    check(message.starts_with(path + ": "), "an error names the path: " + message);
    return message;
  };
  const auto says = [](const std::string& message, const std::string& part) {
    check(message.find(part) != std::string::npos, message);
  };
  put_file(path, "a file");
  says(refusal(), "is a file");
  fs::remove(path);

  fs::create_directory(path);
  put_file(path + "/notes.txt", "somebody's");
  says(refusal(), "notes.txt");
  check(fs::exists(path + "/notes.txt"), "somebody's files stay");
  fs::remove_all(path);

  says(error_of(ErrorKind::kStorage, [&] { LevelDbTier("var", kLayout, path + "/a/b"); }), path);
}

// A database of another program, or of another version.
class OthersDatabase {
 public:
  explicit OthersDatabase(const std::string& path)
      : options_(calls_, {}),
        read_options_(calls_.readoptions_create(), {calls_.readoptions_destroy}),
        write_options_(calls_.writeoptions_create(), {calls_.writeoptions_destroy}) {
    calls_.options_set_create_if_missing(options_.handle.get(), 1);
    char* error = nullptr;
    database_ = calls_.open(options_.handle.get(), path.c_str(), &error);
    check(error == nullptr, "another's database can be opened");
  }
  ~OthersDatabase() { calls_.close(database_); }
  OthersDatabase(const OthersDatabase&) = delete;
  OthersDatabase& operator=(const OthersDatabase&) = delete;

  void put(std::string_view key, std::string_view value) {
    const LevelDbOwned<LevelDbLibrary::WriteBatch> batch(calls_.writebatch_create(),
                                                         {calls_.writebatch_destroy});
    calls_.writebatch_put(batch.get(), key.data(), key.size(), value.data(), value.size());
    char* error = nullptr;
    calls_.write(database_, write_options_.get(), batch.get(), &error);
    check(error == nullptr, "another's database can be written");
  }
  std::string get(std::string_view key) const {
    size_t bytes = 0;
    char* error = nullptr;
    const LevelDbOwned<char> value(
        calls_.get(database_, read_options_.get(), key.data(), key.size(), &bytes, &error),
        {calls_.free_text});
    check(error == nullptr && value != nullptr, "another's database still has its records");
    return {value.get(), bytes};
  }

 private:
  const LevelDbLibrary& calls_ = leveldb_library();
  const LevelDbOpenOptions options_;
  const LevelDbOwned<LevelDbLibrary::ReadOptions> read_options_;
  const LevelDbOwned<LevelDbLibrary::WriteOptions> write_options_;
  LevelDbLibrary::Database* database_ = nullptr;
};

// Returns the error for a database with these records. It must name the path, and the records must stay.
std::string refusal_of(const std::string& path, const std::map<std::string, std::string>& records) {
  {
    OthersDatabase others(path);
    for (const auto& [key, value] : records) others.put(key, value);
  }
  const std::string message = error_of(ErrorKind::kStorage, [&] { LevelDbTier("var", kLayout, path); });
  check(message.starts_with(path + ": "), message);
  const OthersDatabase others(path);
  for (const auto& [key, value] : records)
    check(others.get(key) == value, "a refused database stays as it was");
  return message;
}

std::string format_record_of_version(uint32_t version) {
  LevelDbFormatRecord record = LevelDbFormatRecord::of(kLayout);
  record.version = version;
  return std::string(record.bytes());
}

void databases_of_others_are_refused_and_stay(const TemporaryDirectory& directory) {
  const std::string somebodys = directory / "somebodys";
  check(refusal_of(somebodys, {{"name", "somebody's"}}) ==
            somebodys + ": is a LevelDB database of something else; give another directory",
        "it isn't this tier's");
  const std::string later = refusal_of(directory / "later", {{"format", format_record_of_version(4)}});
  check(later.find("has format version 4; this program writes version 2") != std::string::npos, later);
}

// Earlier versions kept rows below a durable pool in version 3, which is no longer read.
void rows_of_earlier_versions_checkpoints_are_refused_with_the_way_out_and_stay(const std::string& path) {
  const std::string row(leveldb_row_key(0, {7, 3}).data(), sizeof(LevelDbRowKey));
  const std::string message = refusal_of(
      path, {{"format", format_record_of_version(3)}, {"tvar", "a table"}, {row, "a checkpoint's row"}});
  check(message.find(
            "has format version 3, which earlier versions of this program wrote below a durable pool") !=
            std::string::npos,
        message);
  check(message.find("restore the variable with such a version and es.save() it") != std::string::npos,
        message);
}

// This program, executed again with these arguments, since LevelDB can't be used in a forked child.
class AnotherProcess {
 public:
  AnotherProcess(const char* what, const std::string& path) {
    int to_child[2], to_parent[2];
    check(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(to_parent, O_CLOEXEC) == 0, "pipes can be made");
    child_ = start_child([&] {
      dup2(to_child[0], STDIN_FILENO);
      dup2(to_parent[1], STDOUT_FILENO);
      execl("/proc/self/exe", "leveldb_tier_test", what, path.c_str(), nullptr);
      _exit(127);
    });
    close(to_child[0]);
    close(to_parent[1]);
    stdin_ = to_child[1];
    stdout_ = to_parent[0];
  }
  // Waits for a byte from the process; returns false if it has ended.
  bool answers() const {
    char byte = 0;
    return ::read(stdout_, &byte, 1) == 1;
  }
  // Ends it by closing its stdin; fails unless it ends well.
  void end() {
    close(stdin_);
    check(end_of_child(child_) == 0, "another process failed");
    close(stdout_);
  }

 private:
  pid_t child_ = 0;
  int stdin_ = -1;
  int stdout_ = -1;
};

// The work of such a process: opens a tier, writes a byte to stdout, and waits for the end of stdin.
void hold_a_database(const std::string& path) {
  const LevelDbTier tier("var", kLayout, path);
  char byte = 'x';
  check(::write(STDOUT_FILENO, &byte, 1) == 1, "the parent listens");
  check(::read(STDIN_FILENO, &byte, 1) == 0, "the parent closes");
}
// The work of another one: writes a row and dies.
void leave_a_database(const std::string& path) {
  LevelDbTier tier("var", RowLayout(1, 0), path);  // with another layout, too
  RowBatch rows(RowLayout(1, 0));
  rows.resize(1);
  rows.header(0) = {5, 1, 1, 1, 1, 1};
  Slot slot;
  tier.write(rows, std::span(&slot, 1));
  _exit(0);
}

void another_process_s_database_is_in_use(const std::string& path) {
  AnotherProcess process("hold", path);
  check(process.answers(), "the other process has the database");
  const std::string message = error_of(ErrorKind::kInUse, [&] { LevelDbTier("var", kLayout, path); });
  check(message.starts_with(path + ": is in use by another variable"), message);
  process.end();
}

void damaged_rows_are_reported_and_the_others_are_read(const std::string& path) {
  LevelDbTier tier("var", kLayout, path, {.write_buffer_bytes = size_t{64} << 10});
  std::vector<int64_t> keys = keys_from(0, 5000);
  std::vector<Place> places;
  for (size_t i = 0; i < keys.size(); i += 100) {
    const std::vector<Place> some = write(
        tier, {keys.begin() + static_cast<ptrdiff_t>(i), keys.begin() + static_cast<ptrdiff_t>(i) + 100}, 1);
    places.insert(places.end(), some.begin(), some.end());
  }
  expect_rows(tier, places, 1);
  const auto files = [&path] {
    std::vector<std::string> found = files_in(path);
    std::erase_if(found, [](const std::string& file) { return !file.ends_with(".ldb"); });
    return found;
  };
  for (int i = 0; i < 1000 && files().empty(); ++i) usleep(1000);
  check(!files().empty(), "LevelDB puts rows that it has gathered into files");
  for (const std::string& file : files()) flip(file, fs::file_size(file) / 2);
  RowBatch rows(kLayout);
  rows.set_places(places);
  tier.read_rows(rows, RowPart::kAll);
  const std::map<size_t, std::string> damaged = rows.damaged();
  for (const auto& [position, reason] : damaged) check(reason.starts_with(path + ": "), reason);
  size_t read = 0, lost = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (damaged.contains(i)) continue;
    if (rows.header(i).key != places[i].key) {
      ++lost;
    } else {
      check(is_filled(rows, i, places[i].key, 1), "no damaged row passes for a whole one");
      ++read;
    }
  }
  check(!damaged.empty() && read + lost + damaged.size() == places.size(), "damaged rows are told");
  check(read > places.size() * 9 / 10, "and the others are read");
  try {
    tier.read(places, rows);
    fail("who needs all rows gets an error");
  } catch (const DamagedRowsError& error) {
    check(error.keys().size() == damaged.size(), "with their keys");
  }
}

void a_leftover_of_a_dead_process_is_emptied(const std::string& path) {
  AnotherProcess("leave", path).end();
  check(fs::exists(path + "/CURRENT"), "the dead process left its database");
  const LevelDbTier tier("var", kLayout, path);
  check(!is_there(tier, {5, 0}), "the tier starts empty");
}

// Compares random batches with a map from places to what was written there.
void the_tier_is_a_map_of_places(const std::string& path, uint64_t seed) {
  std::mt19937_64 random(seed);
  LevelDbTier tier("var", kLayout, path, {.write_buffer_bytes = size_t{64} << 10});
  std::map<std::pair<int64_t, Slot>, uint64_t> model;
  std::vector<Place> erased;
  const auto some_places = [&](size_t count) {
    std::vector<Place> places;
    for (size_t i = 0; i < count && !model.empty(); ++i) {
      auto entry = model.lower_bound({static_cast<int64_t>(random()), 0});
      if (entry == model.end()) entry = model.begin();
      places.push_back({entry->first.first, entry->first.second});
    }
    return places;
  };
  for (uint64_t step = 0; step < 600; ++step) {
    switch (random() % 5) {
      case 0:
      case 1: {
        std::vector<int64_t> keys(random() % 100);
        for (int64_t& key : keys) {
          key = static_cast<int64_t>(hash_key(static_cast<int64_t>(random() % 500)));
        }
        for (const Place& place : write(tier, keys, step)) {
          check(model.emplace(std::pair(place.key, place.slot), step).second, "places are new");
        }
        break;
      }
      case 2: {
        for (const Place& place : some_places(random() % 60)) {
          if (model.erase({place.key, place.slot}) == 0) continue;
          tier.erase(std::span(&place, 1));
          erased.push_back(place);
        }
        break;
      }
      case 3: {
        const std::vector<Place> places = some_places(random() % 80);
        RowBatch rows(kLayout);
        tier.read(places, rows);
        for (size_t i = 0; i < places.size(); ++i) {
          check(is_filled(rows, i, places[i].key, model.at({places[i].key, places[i].slot})),
                "a place holds what was written there");
        }
        break;
      }
      default:
        if (random() % 10 != 0) break;
        tier.drain();
        for (const Place& place : erased) check(!is_there(tier, place), "an erased place is empty");
    }
    check(tier.stats().rows == model.size(), "rows are counted");
  }
}

void threads_may_read_write_and_erase_at_once(const std::string& path) {
  LevelDbTier tier("var", kLayout, path, {.write_buffer_bytes = size_t{64} << 10});
  std::atomic<int64_t> next_key{0};
  std::vector<std::thread> threads;
  const std::vector<Place> shared = write(tier, {-1, -2, -3}, 9);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t step = 0; step < 60; ++step) {
        std::vector<int64_t> keys(50);
        for (int64_t& key : keys) key = next_key++;
        const std::vector<Place> places = write(tier, keys, step);
        expect_rows(tier, places, step);
        expect_rows(tier, shared, 9);
        tier.erase(std::span(places).first(40));
        expect_rows(tier, {places[45], places[44]}, step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tier.drain();
  check(tier.stats().rows == 4 * 60 * 10 + 3, "what was not erased is left");
}

void test_rows() {
  const TemporaryDirectory directory;
  rows_read_back_in_the_order_that_was_asked_for(directory / "order");
  a_row_that_comes_back_outlives_its_erased_place(directory / "outlives");
  records_that_cannot_be_deleted_are_reported_by_drain_only(directory / "full");
  tables_share_the_database_of_a_directory(directory / "shared");
  files_of_others_are_refused(directory);
  databases_of_others_are_refused_and_stay(directory);
  rows_of_earlier_versions_checkpoints_are_refused_with_the_way_out_and_stay(directory / "version-3");
  another_process_s_database_is_in_use(directory / "in-use");
  damaged_rows_are_reported_and_the_others_are_read(directory / "damaged");
  a_leftover_of_a_dead_process_is_emptied(directory / "leftover");
  for (uint64_t seed = 1; seed <= 5; ++seed) the_tier_is_a_map_of_places(directory / "map", seed);
  threads_may_read_write_and_erase_at_once(directory / "threads");
}

}  // namespace
}  // namespace embstore

// LevelDB isn't built with the sanitizer, which therefore doesn't see how its threads synchronize.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libleveldb.so\nrace:leveldb::\n";
}

int main(int count, char** arguments) {
  using namespace embstore;
  const std::string what = count > 2 ? arguments[1] : "";
  if (what == "hold") {
    hold_a_database(arguments[2]);
  } else if (what == "leave") {
    leave_a_database(arguments[2]);
  } else {
    test_rows();
    std::printf("held: the LevelDB tier\n");
  }
  return 0;
}
