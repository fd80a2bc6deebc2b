// The LevelDB tier: what it keeps, gives back and refuses; against a plain map, and from many threads.
// With arguments it is a tool for tests in other languages:
//   leveldb_tier_test keep PATH   leaves a database of three rows (dim 3, one slot) at PATH
#include "tiers/leveldb/leveldb_tier.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "platform/crc32c.h"
#include "store/index/index.h"
#include "testing/check.h"

// LevelDB is not built with the sanitizer, which therefore doesn't see how its threads agree.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libleveldb.so\nrace:leveldb::\n";
}

namespace embstore {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
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

std::vector<int64_t> scanned_keys(LevelDbTier& tier, size_t batch = 2) {
  std::vector<int64_t> keys;
  RowBatch rows(kLayout);
  std::vector<Place> places;
  LevelDbTier::Scan scan = tier.scan();
  while (scan.next(batch, rows, places)) {
    check(rows.size() == places.size() && rows.size() <= batch, "a scan keeps to the batch's size");
    for (size_t i = 0; i < places.size(); ++i) {
      check(rows.header(i).key == places[i].key, "a scan gives each place its row");
      keys.push_back(places[i].key);
    }
  }
  return keys;
}

void checksums_are_those_of_the_standard() {
  // RFC 3720, appendix B.4.
  check(crc32c("123456789", 9) == 0xe3069283, "CRC-32C of the digits");
  const std::vector<char> zeros(32, '\0');
  check(crc32c(zeros.data(), 32) == 0x8a9136aa, "CRC-32C of 32 zeros");
  check(crc32c("456789", 6, crc32c("123", 3)) == 0xe3069283, "CRC-32C goes on");
}

void rows_read_back_in_the_order_that_was_asked_for(const std::string& path) {
  LevelDbTier tier(kLayout, path);
  std::vector<Place> places = write(tier, {5, -5, 0, kGreatest, kLeast, -1}, 1);
  expect_rows(tier, places, 1);
  std::reverse(places.begin(), places.end());
  places.push_back(places[2]);
  expect_rows(tier, places, 1);
  check(tier.stats().rows == 6, "rows are counted");
  check(tier.stats().row_bytes == kLayout.row_bytes(), "row_bytes are those of the floats");
  check(tier.stats().path == path && tier.stats().mapped_bytes > 0, "stats() names the files");
  check(scanned_keys(tier) == std::vector<int64_t>{kLeast, -5, -1, 0, 5, kGreatest}, "a scan ascends");
}

void a_row_that_comes_back_outlives_its_erased_place(const std::string& path) {
  LevelDbTier tier(kLayout, path);
  const Place first = write(tier, {1}, 1)[0];
  tier.erase(std::span(&first, 1));
  check(tier.stats().rows == 0 && tier.waiting_erasures() == 1, "an erasure waits");
  const Place second = write(tier, {1}, 2)[0];
  check(tier.waiting_erasures() == 0, "a write takes the erasures along");

  std::vector<int64_t> many(size_t{1} << 16);
  std::iota(many.begin(), many.end(), int64_t{100});
  const std::vector<Place> leaving = write(tier, many, 1);
  tier.erase(std::span(leaving).first(1));
  tier.compact();
  check(tier.waiting_erasures() == 1, "a few erasures wait for a write");
  tier.erase(std::span(leaving).subspan(1));
  tier.compact();
  check(tier.waiting_erasures() == 0, "many don't");
  expect_rows(tier, {second}, 2);
  check(!is_there(tier, first), "the erased place is gone");

  // Two places of one key, as two evictors leave them; the one that lost is erased.
  const Place third = write(tier, {1}, 3)[0];
  expect_rows(tier, {second}, 2);
  expect_rows(tier, {third}, 3);
  tier.erase(std::span(&third, 1));
  tier.drain();
  expect_rows(tier, {second}, 2);
  check(!is_there(tier, third), "drain() deletes what was erased");
  check(tier.stats().rows == 1, "one row is left");
}

void a_closed_tier_leaves_nothing_unless_it_is_asked_to(const std::string& path) {
  {
    write(*std::make_unique<LevelDbTier>(kLayout, path), {1, 2}, 1);
  }
  check(!std::filesystem::exists(path), "the directory is removed");
  std::vector<Place> places;
  {
    LevelDbTier tier(kLayout, path, {.keep_files = true});
    places = write(tier, {1, 2, 3}, 1);
    tier.erase(std::span(&places[1], 1));
  }
  {
    LevelDbTier tier(kLayout, path, {.reopen = true, .keep_files = true});
    check(scanned_keys(tier) == std::vector<int64_t>{1, 3} && tier.stats().rows == 2,
          "a kept database comes back without its erased rows");
    expect_rows(tier, {places[0], places[2]}, 1);
    const Place fourth = write(tier, {4}, 1)[0];
    check(fourth.slot > places[2].slot, "slots go on where they ended");
  }
  const std::string message = error_of(ErrorKind::kStorage, [&] { LevelDbTier(kLayout, path); });
  check(message.starts_with(path) && message.find("kept") != std::string::npos, message);
  {
    LevelDbTier tier(kLayout, path, {.reopen = true});
  }
  check(!std::filesystem::exists(path), "a reopened one is removed as well");
}

void what_is_no_tier_of_this_layout_is_refused(const TemporaryDirectory& directory) {
  const std::string path = directory / "refused";
  const auto refusal = [&](const RowLayout& layout, const LevelDbOptions& options) {
    const std::string message = error_of(ErrorKind::kStorage, [&] { LevelDbTier(layout, path, options); });
    check(message.starts_with(path + ": "), "an error names the path: " + message);
    return message;
  };
  const auto says = [](const std::string& message, const std::string& part) {
    check(message.find(part) != std::string::npos, message);
  };
  says(refusal(kLayout, {.reopen = true}), "no LevelDB database to reopen");
  {
    LevelDbTier tier(kLayout, path, {.keep_files = true});
    write(tier, {1, 2}, 1);
    says(refusal(kLayout, {}), "in use by another variable");
  }
  says(refusal(RowLayout(6, 2), {.reopen = true}), "rows of dim 5 with 2 optimizer slots");
  says(refusal(RowLayout(5, 1), {.reopen = true}), "rows of dim 5 with 2 optimizer slots");
  std::filesystem::remove_all(path);

  std::ofstream(path) << "a file";
  says(refusal(kLayout, {}), "is a file");
  std::filesystem::remove(path);

  std::filesystem::create_directory(path);
  std::ofstream(path + "/notes.txt") << "somebody's";
  says(refusal(kLayout, {}), "notes.txt");
  check(std::filesystem::exists(path + "/notes.txt"), "somebody's files stay");
  std::filesystem::remove_all(path);

  says(error_of(ErrorKind::kStorage, [&] { LevelDbTier(kLayout, path + "/a/b"); }), path);
}

void a_damaged_row_is_an_error_that_names_the_database(const std::string& path) {
  std::vector<Place> places;
  {
    LevelDbTier tier(kLayout, path, {.keep_files = true, .write_buffer_bytes = size_t{64} << 10});
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < 2000; ++key) keys.push_back(key);
    places = write(tier, keys, 1);
    write(tier, {5000}, 1);  // the write that finds the buffer full has it put in a file
    for (int i = 0; i < 100 && tier.stats().mapped_bytes < 1; ++i) usleep(1000);
  }
  {
    LevelDbTier tier(kLayout, path, {.reopen = true, .keep_files = true});  // the log becomes files
  }
  int damaged = 0;
  for (const auto& file : std::filesystem::directory_iterator(path)) {
    if (file.path().extension() != ".ldb") continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(file.file_size() / 2));
    const int byte = bytes.peek();
    bytes.put(static_cast<char>(byte ^ 1));
    ++damaged;
  }
  check(damaged > 0, "the rows are in files");
  const std::string message = error_of(
      ErrorKind::kStorage, [&] { LevelDbTier(kLayout, path, {.reopen = true, .keep_files = true}); });
  check(message.starts_with(path), message);
}

void a_killed_process_loses_no_row_that_was_written(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    LevelDbTier tier(kLayout, path, {.keep_files = true});
    const Place first = write(tier, {1, 2}, 1)[0];
    write(tier, {1}, 2);  // and the older record is left, as by two evictors
    tier.erase(std::span(&first, 1));
    _exit(0);  // as if killed: nothing is closed
  }
  int status = 0;
  waitpid(child, &status, 0);
  check(status == 0, "the process that is to die did its work");
  LevelDbTier tier(kLayout, path, {.reopen = true});
  check(scanned_keys(tier) == std::vector<int64_t>{1, 2} && tier.stats().rows == 2,
        "one record a key is left");
  RowBatch rows(kLayout);
  std::vector<Place> places;
  LevelDbTier::Scan scan = tier.scan();
  check(scan.next(10, rows, places), "there are rows");
  check(is_filled(rows, 0, 1, 2) && is_filled(rows, 1, 2, 1), "and it is the newest");
}

void a_leftover_of_a_dead_process_is_emptied(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    LevelDbTier tier(RowLayout(1, 0), path);  // of another layout, too
    RowBatch rows(RowLayout(1, 0));
    rows.resize(1);
    Slot slot;
    tier.write(rows, std::span(&slot, 1));
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  LevelDbTier tier(kLayout, path);
  check(scanned_keys(tier).empty(), "the tier starts empty");
}

// Random batches against a map from places to what was written there.
void it_is_a_map_of_places(const std::string& path, uint64_t seed) {
  std::mt19937_64 random(seed);
  LevelDbTier tier(kLayout, path, {.write_buffer_bytes = size_t{64} << 10});
  std::map<std::pair<int64_t, Slot>, uint64_t> model;
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
          if (model.erase({place.key, place.slot}) != 0) tier.erase(std::span(&place, 1));
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
        std::vector<int64_t> expected;
        for (const auto& entry : model) expected.push_back(entry.first.first);
        check(scanned_keys(tier, 64) == expected, "a scan finds every place");
    }
    check(tier.stats().rows == model.size(), "rows are counted");
  }
}

void threads_may_read_write_and_erase_at_once(const std::string& path) {
  LevelDbTier tier(kLayout, path, {.write_buffer_bytes = size_t{64} << 10});
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
        if (step % 20 == 0) scanned_keys(tier, 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tier.drain();
  check(tier.stats().rows == 4 * 60 * 10 + 3, "what was not erased is left");
  check(scanned_keys(tier, 1000).size() == 4 * 60 * 10 + 3, "and a scan finds it");
}

void run() {
  const TemporaryDirectory directory;
  checksums_are_those_of_the_standard();
  rows_read_back_in_the_order_that_was_asked_for(directory / "order");
  a_row_that_comes_back_outlives_its_erased_place(directory / "outlives");
  a_closed_tier_leaves_nothing_unless_it_is_asked_to(directory / "kept");
  what_is_no_tier_of_this_layout_is_refused(directory);
  a_damaged_row_is_an_error_that_names_the_database(directory / "damaged");
  a_killed_process_loses_no_row_that_was_written(directory / "killed");
  a_leftover_of_a_dead_process_is_emptied(directory / "leftover");
  for (uint64_t seed = 1; seed <= 5; ++seed) it_is_a_map_of_places(directory / "map", seed);
  threads_may_read_write_and_erase_at_once(directory / "threads");
}

void keep(const std::string& path) {
  const RowLayout layout(3, 1);
  LevelDbTier tier(layout, path, {.keep_files = true});
  RowBatch rows(layout);
  rows.resize(3);
  for (size_t i = 0; i < 3; ++i) {
    const auto n = static_cast<int64_t>(i);
    rows.header(i) = {n - 1, i + 10, n + 20, i + 30, i + 40, i + 50};
    for (size_t f = 0; f < layout.row_floats(); ++f) {
      rows.row(i)[f] = static_cast<float>(i) + static_cast<float>(f) / 8;
    }
  }
  std::vector<Slot> slots(3);
  tier.write(rows, slots);
}

}  // namespace
}  // namespace embstore

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "keep") {
    embstore::keep(argv[2]);
    return 0;
  }
  embstore::run();
  std::printf("held: the LevelDB tier\n");
  return 0;
}
