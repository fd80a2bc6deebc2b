#include "file_table.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

namespace embstore::log::testing {
namespace fs = std::filesystem;

// -- the index --------------------------------------------------------------------------------------------

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

// -- the table --------------------------------------------------------------------------------------------

TableIdentity table_of(const RowLayout& layout, const std::string& name) {
  return {.table_name = name, .optimizer = "adagrad", .layout = layout, .uuid = {}};
}

SsdHashOptions small_files() {
  SsdHashOptions options;
  options.file_bytes = 64 << 10;
  options.buffer_bytes = 128 << 10;
  return options;
}

SsdHashOptions small_files_for_checkpoints() {
  SsdHashOptions options = small_files();
  options.file_bytes = 32 << 10;
  options.keeps_checkpoints = true;
  return options;
}

TestTable::TestTable(const std::string& root, const SsdHashOptions& options, const TableIdentity& table)
    : layout_(table.layout), buffer_bytes_(options.buffer_bytes) {
  if (options.keeps_checkpoints) {
    fs::create_directories(root + "/manifests");
    files::FileCalls& calls =
        options.file_calls != nullptr ? *options.file_calls : files::system_file_calls();
    checkpoints = std::make_unique<Checkpoints>(root + "/manifests/table", table, calls);
    tier = std::make_unique<SsdHashTier>(checkpoints->table(), root + "/rows", options);
    checkpoints->take_up({tier.get()});
  } else {
    tier = std::make_unique<SsdHashTier>(table, root + "/rows", options);
  }
  tier->start_compaction(index);
}

TestTable::~TestTable() {
  if (checkpoints != nullptr) checkpoints->drop_pending();
}

void TestTable::write(std::span<const int64_t> keys, int64_t version) {
  RowBatch rows(layout_);
  rows.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(rows, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  tier->write(rows, slots);
  std::vector<Place> replaced;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const auto old = index.put(keys[i], slots[i], version)) replaced.push_back({keys[i], old->slot});
  }
  tier->erase(replaced);
}

void TestTable::erase(std::span<const int64_t> keys) {
  std::vector<Place> places;
  for (const int64_t key : keys) {
    if (const auto entry = index.take(key)) places.push_back({key, entry->slot});
  }
  tier->erase(places);
}

void TestTable::erase_all() {
  std::vector<int64_t> keys;
  for (const auto& [key, entry] : index.all()) keys.push_back(key);
  erase(keys);
}

void TestTable::check_rows() const {
  const auto entries = index.all();
  check(tier->stats().rows == entries.size(), "the tier counts " + std::to_string(tier->stats().rows) +
                                                  " rows of " + std::to_string(entries.size()));
  constexpr size_t kBatch = 1000;
  RowBatch rows(layout_);
  RowBatch row(layout_);
  for (size_t first = 0; first < entries.size(); first += kBatch) {
    std::vector<Place> places;
    for (size_t i = first; i < entries.size() && i < first + kBatch; ++i) {
      places.push_back({entries[i].first, entries[i].second.slot});
    }
    tier->read(places, rows);
    for (size_t i = 0; i < places.size(); ++i) {
      auto now = index.find(places[i].key);
      const RowBatch* read = &rows;
      // A compaction thread may be at work: what it moved is read anew, until it's caught.
      while (now->slot != places[i].slot) {
        places[i].slot = now->slot;
        tier->read(std::span(&places[i], 1), row);
        read = &row;
        now = index.find(places[i].key);
      }
      check(checked_version(*read, read == &rows ? i : 0, places[i].key) == now->version,
            "a row has another version");
    }
  }
}

void TestTable::check_space() const {
  tier->drain();
  const std::string path = *tier->stats().path;
  SsdHashStats stats = tier->detailed_stats();
  uint64_t bytes = bytes_in(path);
  // A thread of the tier's own may be at it between the two.
  for (int again = 0; again < 200 && bytes != stats.file_bytes; ++again) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = tier->detailed_stats();
    bytes = bytes_in(path);
  }
  check(bytes == stats.file_bytes, "the files take " + std::to_string(bytes) + " bytes, the tier says " +
                                       std::to_string(stats.file_bytes));
  const uint64_t bound = 2 * stats.live_rows * stats.record_bytes + buffer_bytes_;
  check(bytes - stats.held_bytes <= bound,
        "the files take " + std::to_string(bytes) + " bytes, of which checkpoints alone hold " +
            std::to_string(stats.held_bytes) + "; the bound is " + std::to_string(bound));
  check(stats.compaction_error.empty(), stats.compaction_error);
  check(stats.lost_records == 0 && stats.damaged_records == 0, "rows were lost");
}

TableMoment TestTable::moment() const {
  TableMoment moment{.apply_count = 0, .beta1_power = 0.5, .clock = index.size()};
  for (const auto& [key, entry] : index.all()) moment.apply_count += key ^ entry.version;
  return moment;
}

Versions TestTable::versions() const {
  Versions versions;
  for (const auto& [key, entry] : index.all()) versions.emplace(key, entry.version);
  return versions;
}

uint64_t TestTable::begin() { return checkpoints->begin(moment()); }

void TestTable::commit(uint64_t number) { checkpoints->commit(number, id_of(number)); }

uint64_t TestTable::checkpoint() {
  const uint64_t number = begin();
  commit(number);
  return number;
}

void TestTable::restore(uint64_t number, int threads) {
  erase_all();
  const auto visit = [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
    check(headers.size() == slots.size() && !slots.empty(), "a visit has no rows");
    for (size_t i = 0; i < slots.size(); ++i) {
      check(!index.put(headers[i].key, slots[i], headers[i].version), "a key has two rows");
    }
  };
  try {
    checkpoints->restore(number, threads, visit);
  } catch (...) {
    erase_all();
    throw;
  }
  const KeptCheckpoint kept = checkpoints->kept().back();
  check(kept.number == number && kept.rows == index.size() && kept.id == id_of(number) &&
            kept.moment == moment(),
        "the manifest says other things than were committed");
}

std::vector<uint64_t> TestTable::kept() const {
  std::vector<uint64_t> numbers;
  for (const KeptCheckpoint& checkpoint : checkpoints->kept()) numbers.push_back(checkpoint.number);
  return numbers;
}

}  // namespace embstore::log::testing
