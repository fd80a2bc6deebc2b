// ssd_hash_test --list | NAME... : runs the named tests, or all.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace embstore::ssd_hash::testing {

void fill_row(RowBatch& rows, size_t i, int64_t key, int64_t version) {
  const auto bits = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ULL ^ static_cast<uint64_t>(version);
  rows.header(i) = {.key = key, .frequency = bits, .version = version, .served = bits + 1, .stamp = bits + 2};
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    rows.row(i)[f] = static_cast<float>((bits + f * 7919) % 16000000);
  }
}

int64_t checked_version(const RowBatch& rows, size_t i, int64_t key) {
  const RowHeader& header = rows.header(i);
  check(header.key == key,
        "row of key " + std::to_string(header.key) + " in place of " + std::to_string(key));
  const int64_t version = header.version;
  const auto bits = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ULL ^ static_cast<uint64_t>(version);
  check(header.frequency == bits && header.served == bits + 1 && header.stamp == bits + 2,
        "a row's header is torn");
  for (size_t f = 0; f < rows.row_floats(); ++f) {
    check(rows.row(i)[f] == static_cast<float>((bits + f * 7919) % 16000000), "a row is torn");
  }
  return version;
}

void PlainIndex::relocate(std::span<Relocation> rows) {
  for (Relocation& row : rows) {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(row.key);
    row.done = found != entries_.end() && found->second.slot == row.from;
    if (row.done) found->second.slot = row.to;
  }
}

std::optional<PlainIndex::Entry> PlainIndex::put(int64_t key, Slot slot, int64_t version) {
  const MutexLock lock(mutex_);
  const auto [found, is_new] = entries_.try_emplace(key, Entry{slot, version});
  if (is_new) return std::nullopt;
  return std::exchange(found->second, Entry{slot, version});
}

std::optional<PlainIndex::Entry> PlainIndex::find(int64_t key) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

std::optional<PlainIndex::Entry> PlainIndex::take(int64_t key) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  const Entry entry = found->second;
  entries_.erase(found);
  return entry;
}

std::vector<std::pair<int64_t, PlainIndex::Entry>> PlainIndex::all() const {
  const MutexLock lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

size_t PlainIndex::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void write_rows(SsdHashTier& tier, PlainIndex& index, const RowLayout& layout, std::span<const int64_t> keys,
                int64_t version) {
  RowBatch rows(layout);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  tier.write(rows, slots);
  std::vector<Place> replaced;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const auto old = index.put(keys[i], slots[i], version)) replaced.push_back({keys[i], old->slot});
  }
  tier.erase(replaced);
}

void check_all(const SsdHashTier& tier, const PlainIndex& index, const RowLayout& layout) {
  const auto entries = index.all();
  check(tier.stats().rows == entries.size(), "the tier counts " + std::to_string(tier.stats().rows) +
                                                 " rows of " + std::to_string(entries.size()));
  constexpr size_t kBatch = 1000;
  RowBatch rows(layout);
  for (size_t first = 0; first < entries.size(); first += kBatch) {
    std::vector<Place> places;
    for (size_t i = first; i < entries.size() && i < first + kBatch; ++i) {
      places.push_back({entries[i].first, entries[i].second.slot});
    }
    tier.read(places, rows);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto now = index.find(places[i].key);
      if (now->slot != places[i].slot) continue;  // compaction moved it, see below
      check(checked_version(rows, i, places[i].key) == now->version, "a row has another version");
    }
    // A compaction thread may be at work: what it moved is read anew, until it's caught.
    for (size_t i = 0; i < places.size(); ++i) {
      RowBatch row(layout);
      for (auto now = index.find(places[i].key); now->slot != places[i].slot;
           now = index.find(places[i].key)) {
        places[i].slot = now->slot;
        tier.read(std::span(&places[i], 1), row);
        if (index.find(places[i].key)->slot != places[i].slot) continue;
        check(checked_version(row, 0, places[i].key) == now->version, "a row has another version");
      }
    }
  }
}

uint64_t bytes_in(const std::string& directory) {
  uint64_t bytes = 0;
  for (const std::string& path : files_in(directory)) {
    std::error_code gone;
    const uint64_t size = std::filesystem::file_size(path, gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

SsdHashOptions small_files() {
  SsdHashOptions options;
  options.file_bytes = 64 << 10;
  options.buffer_bytes = 128 << 10;
  return options;
}

}  // namespace embstore::ssd_hash::testing

int main(int argc, char** argv) {
  using namespace embstore::ssd_hash::testing;
  using embstore::check;
  using embstore::fail;
  std::vector<Test> tests;
  for (const auto group : {row_tests(), file_tests(), fault_tests(), medium_tests(), descriptor_tests(),
                           every_call_tests(), random_tests(), thread_tests(), kill_tests(),
                           checkpoint_tests(), checkpoint_random_tests(), power_tests()}) {
    tests.insert(tests.end(), group.begin(), group.end());
  }
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Test& test : tests) std::printf("%s\n", test.name);
    return 0;
  }
  for (int i = 1; i < argc; ++i) {
    bool known = false;
    for (const Test& test : tests) known = known || std::strcmp(test.name, argv[i]) == 0;
    check(known, std::string("there is no test ") + argv[i]);
  }
  for (const Test& test : tests) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(test.name, argv[i]) == 0;
    if (!wanted) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(std::string(test.name) + ": " + error.what());
    }
  }
  std::printf("held\n");
  return 0;
}
