#include "tiers/leveldb/testing/followed_table.h"

#include <fcntl.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "files/file.h"
#include "row/key_hash.h"
#include "testing/check.h"
#include "threads/mutex.h"

namespace embstore::leveldb::testing {
namespace {

// Small buffers: files and compactions come early.
constexpr LevelDbOptions kSmall{.write_buffer_bytes = size_t{64} << 10, .max_file_bytes = size_t{1} << 20};

uint64_t mix(uint64_t a, uint64_t b) {
  return hash_key(static_cast<int64_t>(hash_key(static_cast<int64_t>(a)) + b));
}

void fill(RowBatch& rows, size_t i, int64_t key, uint64_t version) {
  rows.header(i) = {key, version, static_cast<int64_t>(version) - 7, version + 1, version + 2, version + 3};
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    rows.row(i)[f] = static_cast<float>(mix(static_cast<uint64_t>(key), version * 1000 + f) >> 40);
  }
}

}  // namespace

RowLayout layout() { return {5, 2}; }

CheckpointId id_of(const Index& index) {
  uint64_t sums[2] = {index.size(), 0};
  for (const auto& [key, entry] : index) {
    sums[0] += mix(static_cast<uint64_t>(key), entry.version);
    sums[1] += mix(entry.version, static_cast<uint64_t>(key));
  }
  CheckpointId id;
  std::memcpy(id.data(), sums, sizeof(sums));
  return id;
}

FollowedTable::FollowedTable(std::string path, std::string pool, std::string table)
    : path_(std::move(path)), pool_(std::move(pool)), table_(std::move(table)) {
  open();
}

void FollowedTable::open() {
  read_pool();
  tier.emplace(table_, layout(), path_, kAdagrad, kSmall);
  tier->take_up(kept);
  index.clear();
  pending.clear();
  // As in a new process: a number that wasn't committed comes again.
  next_number_ = kept.empty() ? 1 : kept.back().number + 1;
}

void FollowedTable::reopen() {
  close();
  open();
}

void FollowedTable::write(std::span<const int64_t> keys, uint64_t version) {
  RowBatch rows(layout());
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  tier->write(rows, slots);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto old = index.find(keys[i]);
    if (old != index.end()) {
      const Place place{keys[i], old->second.slot};
      tier->erase(std::span(&place, 1));
    }
    index[keys[i]] = {slots[i], version};
  }
}

void FollowedTable::erase(std::span<const int64_t> keys) {
  for (const int64_t key : keys) {
    const auto found = index.find(key);
    if (found == index.end()) continue;
    const Place place{key, found->second.slot};
    tier->erase(std::span(&place, 1));
    index.erase(found);
  }
}

uint64_t FollowedTable::begin() {
  tier->begin_checkpoint(next_number_);
  pending.emplace(next_number_, id_of(index));
  return next_number_++;
}

void FollowedTable::commit(uint64_t number) {
  const CheckpointName name{number, pending.at(number)};
  tier->commit_checkpoint(name);
  pending.erase(number);
  kept.push_back(name);
  write_pool();
}

void FollowedTable::drop(uint64_t number) {
  pending.erase(number);
  if (std::erase_if(kept, [&](const CheckpointName& name) { return name.number == number; }) != 0)
    write_pool();
  tier->drop_checkpoint(number);
}

void FollowedTable::restore(uint64_t number, int threads) {
  check(pending.empty(), "nothing is pending when a checkpoint is restored");
  std::vector<int64_t> all;
  for (const auto& [key, entry] : index) all.push_back(key);
  erase(all);
  CheckpointName name{};
  for (const CheckpointName& some : kept) name = some.number == number ? some : name;
  Mutex mutex;
  std::vector<Place> places;
  tier->restore(name, threads, [&](std::span<const RowHeader> headers, std::span<const Slot> slots) {
    const MutexLock lock(mutex);
    for (size_t i = 0; i < headers.size(); ++i) {
      check(index.emplace(headers[i].key, Entry{slots[i], headers[i].frequency}).second,
            "each key comes once");
    }
  });
  check(id_of(index) == name.id, "checkpoint " + std::to_string(number) +
                                     " has the rows that it was begun with, not " +
                                     std::to_string(index.size()) + " others");
  check(tier->checkpoint_rows(number) == index.size() && tier->stats().rows == index.size(),
        "and says how many");
  check_all();
}

void FollowedTable::drop_newer_than(uint64_t number) {
  while (!kept.empty() && kept.back().number > number) drop(kept.back().number);
}

void FollowedTable::start_over() {
  std::vector<int64_t> all;
  for (const auto& [key, entry] : index) all.push_back(key);
  erase(all);
  while (!kept.empty()) drop(kept.back().number);
}

void FollowedTable::check_all() const {
  std::vector<Place> places;
  for (const auto& [key, entry] : index) places.push_back({key, entry.slot});
  RowBatch rows(layout()), expected(layout());
  tier->read(places, rows);
  expected.resize(1);
  for (size_t i = 0; i < places.size(); ++i) {
    fill(expected, 0, places[i].key, index.at(places[i].key).version);
    check(std::memcmp(&expected.header(0), &rows.header(i), sizeof(RowHeader)) == 0 &&
              std::memcmp(expected.row(0), rows.row(i), layout().row_bytes()) == 0,
          "the row of key " + std::to_string(places[i].key) + " reads back as it was written");
  }
}

void FollowedTable::read_pool() {
  kept.clear();
  std::ifstream file(pool_, std::ios::binary);
  CheckpointName name;
  while (file.read(reinterpret_cast<char*>(&name), sizeof(name))) kept.push_back(name);
}

void FollowedTable::write_pool() const {
  files::FileCalls& calls = files::system_file_calls();
  files::File file(calls, pool_ + ".new", O_RDWR | O_CREAT | O_TRUNC, {.for_the_medium = true});
  if (!kept.empty()) file.write_at(kept.data(), kept.size() * sizeof(CheckpointName), 0);
  file.sync();
  file.rename_to(pool_);
  files::sync_directory(calls, std::filesystem::path(pool_).parent_path().string());
}

std::string random_step(FollowedTable& table, uint64_t seed, uint64_t version) {
  constexpr int64_t kKeys = 400;
  std::mt19937_64 random(seed);
  const auto some_keys = [&](size_t most) {
    std::map<int64_t, bool> keys;
    for (size_t i = random() % most + 1; i > 0; --i) keys[static_cast<int64_t>(random() % kKeys) - kKeys / 2];
    std::vector<int64_t> all;
    for (const auto& [key, is] : keys) all.push_back(key);
    return all;
  };
  const auto some_kept = [&] { return table.kept[random() % table.kept.size()].number; };
  switch (random() % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: table.write(some_keys(60), version); return "write";
    case 5:
    case 6:
    case 7: table.erase(some_keys(60)); return "erase";
    case 8: table.tier->drain(); return "drain";
    case 9:
      if (table.pending.size() < 3 && table.kept.size() < 6) table.begin();
      return "begin";
    case 10:
    case 11:
      // In order, as the pool's numbers ascend.
      if (!table.pending.empty()) table.commit(table.pending.begin()->first);
      return "commit";
    case 12:
      if (table.kept.size() > 2) table.drop(random() % 4 == 0 ? some_kept() : table.kept.front().number);
      return "drop";
    case 13:
      if (!table.pending.empty() && random() % 2 == 0) table.drop(table.pending.rbegin()->first);
      return "drop pending";
    case 14: {
      if (table.kept.empty()) return "";
      while (!table.pending.empty()) table.drop(table.pending.rbegin()->first);
      const uint64_t number = some_kept();
      table.restore(number, random() % 2 == 0 ? 1 : 3);
      // Whoever restores may find then that the pool can't.
      if (random() % 8 != 0)
        table.drop_newer_than(number);
      else
        table.restore(table.kept.back().number, 2);
      return "restore";
    }
    default: {
      if (random() % 3 != 0) return "";
      table.reopen();
      if (table.kept.empty()) return "reopen";
      if (random() % 8 == 0) {
        table.start_over();
        return "reopen, start over";
      }
      const uint64_t number = random() % 3 == 0 ? some_kept() : table.kept.back().number;
      table.restore(number, 2);
      table.drop_newer_than(number);
      return "reopen, restore";
    }
  }
}

}  // namespace embstore::leveldb::testing
