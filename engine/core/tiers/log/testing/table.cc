#include "table.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "files/file.h"

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

std::optional<Entry> PlainIndex::put(int64_t key, Slot slot, int64_t version) {
  const MutexLock lock(mutex_);
  const auto [found, is_new] = entries_.try_emplace(key, Entry{slot, version});
  if (is_new) return std::nullopt;
  return std::exchange(found->second, Entry{slot, version});
}

std::optional<Entry> PlainIndex::find(int64_t key) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

Entry PlainIndex::at(int64_t key) const {
  const auto entry = find(key);
  check(entry.has_value(), [&] { return "key " + std::to_string(key) + " has no row"; });
  return *entry;
}

std::optional<Entry> PlainIndex::take(int64_t key) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  const Entry entry = found->second;
  entries_.erase(found);
  return entry;
}

void PlainIndex::clear() {
  const MutexLock lock(mutex_);
  entries_.clear();
}

std::vector<std::pair<int64_t, Entry>> PlainIndex::all() const {
  const MutexLock lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

std::vector<int64_t> PlainIndex::keys() const {
  std::vector<int64_t> keys;
  for (const auto& [key, entry] : all()) keys.push_back(key);
  return keys;
}

std::vector<Place> PlainIndex::places() const {
  std::vector<Place> places;
  for (const auto& [key, entry] : all()) places.push_back({key, entry.slot});
  return places;
}

size_t PlainIndex::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

// -- the table --------------------------------------------------------------------------------------------

namespace {

// Returns the table's state beside its rows, different for each checkpoint.
TableMoment moment_of(uint64_t number) {
  return {.apply_count = static_cast<int64_t>(number) * 7,
          .beta1_power = 1.0 / static_cast<double>(number + 1),
          .clock = number << 33};
}

}  // namespace

TableIdentity table_of(const RowLayout& layout, const std::string& name) {
  return {.table_name = name, .optimizer = "adagrad", .layout = layout, .uuid = {}};
}

void check_row(const RowBatch& rows, size_t i, int64_t key, int64_t version) {
  check(checked_version(rows, i, key) == version,
        [&] { return "key " + std::to_string(key) + " has another version"; });
}

void Table::reopen(Pending pending) {
  if (pending == Pending::kLeft) close();
  end();
  index.clear();
  open();
}

void Table::end() {
  if (checkpoints != nullptr) checkpoints->drop_pending();
  close();
}

void Table::adopt_kept(DurableTier& tier) {
  checkpoints->adopt_kept({&tier});
  const std::vector<uint64_t> numbers = kept();
  newest_ = numbers.empty() ? 0 : numbers.back();
}

void Table::write(std::span<const int64_t> keys, int64_t version) {
  RowBatch batch(identity.layout);
  batch.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) fill_row(batch, i, keys[i], version);
  std::vector<Slot> slots(keys.size());
  rows().write(batch, slots);
  check_written(slots);
  std::vector<Place> replaced;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const auto old = index.put(keys[i], slots[i], version)) replaced.push_back({keys[i], old->slot});
  }
  rows().erase(replaced);
}

void Table::erase(std::span<const int64_t> keys) {
  std::vector<Place> places;
  for (const int64_t key : keys) {
    if (const auto entry = index.take(key)) places.push_back({key, entry->slot});
  }
  rows().erase(places);
}

void Table::check_rows() const {
  const auto entries = index.all();
  check(rows().stats().rows == entries.size(), "the tier counts " + std::to_string(rows().stats().rows) +
                                                   " rows of " + std::to_string(entries.size()));
  constexpr size_t kBatch = 1000;
  RowBatch batch(identity.layout);
  RowBatch row(identity.layout);
  for (size_t first = 0; first < entries.size(); first += kBatch) {
    std::vector<Place> places;
    for (size_t i = first; i < entries.size() && i < first + kBatch; ++i) {
      places.push_back({entries[i].first, entries[i].second.slot});
    }
    rows().read(places, batch);
    for (size_t i = 0; i < places.size(); ++i) {
      auto now = index.find(places[i].key);
      const RowBatch* read = &batch;
      // A compaction thread may be running: a row that it moved is read again, until it's found.
      while (now->slot != places[i].slot) {
        places[i].slot = now->slot;
        rows().read(std::span(&places[i], 1), row);
        read = &row;
        now = index.find(places[i].key);
      }
      check_row(*read, read == &batch ? i : 0, places[i].key, now->version);
    }
  }
}

Versions Table::versions() const {
  Versions versions;
  for (const auto& [key, entry] : index.all()) versions.emplace(key, entry.version);
  return versions;
}

uint64_t Table::begin() {
  const uint64_t number = checkpoints->begin(moment_of(newest_ + 1));
  check(number == newest_ + 1, "a checkpoint has another number than the next");
  return newest_ = number;
}

uint64_t Table::checkpoint() {
  const uint64_t number = begin();
  commit(number);
  return number;
}

void Table::restore(uint64_t number, int threads) {
  erase_all();
  const auto visit = [&](size_t, std::span<const RowHeader> headers, std::span<const Slot> slots) {
    check(headers.size() == slots.size() && !slots.empty(), "a visit has no rows");
    for (size_t i = 0; i < slots.size(); ++i) {
      check(!index.put(headers[i].key, slots[i], headers[i].version), "a key has two rows");
    }
  };
  try {
    checkpoints->restore(number, threads, visit);
    checkpoints->drop_newer(number);
  } catch (...) {
    // Either the tier made nothing live, or it did and then a newer checkpoint couldn't be dropped.
    if (rows().stats().rows == 0) {
      index.clear();
    } else {
      erase_all();
    }
    throw;
  }
  const KeptCheckpoint restored = checkpoints->kept().back();
  check(restored.number == number && restored.rows == index.size() && restored.id == id_of(number) &&
            restored.moment == moment_of(number),
        "the manifest says other things than were committed");
}

std::vector<uint64_t> Table::kept() const {
  std::vector<uint64_t> numbers;
  for (const KeptCheckpoint& checkpoint : checkpoints->kept()) numbers.push_back(checkpoint.number);
  return numbers;
}

// -- a pool -----------------------------------------------------------------------------------------------

PoolTable::PoolTable(const std::string& where, const TableIdentity& table, uint64_t slots,
                     const LibPmem& calls, files::FileCalls& file_calls)
    : Table(table, shape_in_pool(table.layout)),
      path(where),
      size_bytes(size_for(table.layout, slots)),
      libpmem_calls_(calls),
      file_calls_(file_calls) {
  open();
}

void PoolTable::open() {
  checkpoints = std::make_unique<Checkpoints>(path + ".pool", identity, file_calls_);
  tier = std::make_unique<PoolTier>(path + ".pool", checkpoints->table(), size_bytes,
                                    checkpoints->any_found(), libpmem_calls_, file_calls_);
  adopt_kept(*tier);
}

void PoolTable::close() {
  tier.reset();
  checkpoints.reset();
}

void PoolTable::write_one(int64_t key, int64_t version) {
  RowBatch batch(identity.layout);
  batch.resize(1);
  fill_row(batch, 0, key, version);
  erase(std::vector{key});
  index.put(key, tier->write_claimed(batch.header(0), batch.row(0), /*is_live=*/true), version);
  tier->fence();
}

void PoolTable::check_written(std::span<const Slot> slots) const {
  check(std::is_sorted(slots.begin(), slots.end()), "a batch isn't written in the order of its slots");
}

void PoolTable::check_taken(uint64_t slots) const {
  const uint64_t taken = tier->slot_count() - tier->free_slots();
  check(taken == slots, std::to_string(taken) + " slots are taken, not " + std::to_string(slots));
}

void PoolTable::check_space() const {
  if (kept().empty() && !checkpoints->has_pending()) check_taken(index.size());
}

Table::Record PoolTable::record_of(int64_t key) const {
  const Slot slot = index.at(key).slot;
  const std::string name = path + ".pool: the record in slot " + std::to_string(slot) + " (at byte " +
                           std::to_string(shape.offset(slot)) + ")";
  return {path + ".pool", shape.offset(slot), name, name};
}

uint64_t size_for(const RowLayout& layout, uint64_t slots) { return shape_in_pool(layout).file_bytes(slots); }

// -- files ------------------------------------------------------------------------------------------------

SsdHashOptions small_files(files::FileCalls& calls) {
  SsdHashOptions options;
  options.file_calls = &calls;
  options.file_bytes = 64 << 10;
  options.buffer_bytes = 128 << 10;
  return options;
}

SsdHashOptions small_files_for_checkpoints(files::FileCalls& calls) {
  SsdHashOptions options = small_files(calls);
  options.file_bytes = 32 << 10;
  options.keeps_checkpoints = true;
  return options;
}

FileTable::FileTable(std::string root, const SsdHashOptions& options, const TableIdentity& table,
                     Relocator* relocator)
    : Table(table, RecordShape(table.layout, 8)),
      root_(std::move(root)),
      options_(options),
      relocator_(relocator != nullptr ? *relocator : index) {
  open();
}

void FileTable::open() {
  if (options_.keeps_checkpoints) {
    fs::create_directories(root_ + "/manifests");
    files::FileCalls& calls =
        options_.file_calls != nullptr ? *options_.file_calls : files::system_file_calls();
    checkpoints = std::make_unique<Checkpoints>(root_ + "/manifests/table", identity, calls);
    tier = std::make_unique<SsdHashTier>(checkpoints->table(), root_ + "/rows", options_);
    adopt_kept(*tier);
  } else {
    tier = std::make_unique<SsdHashTier>(identity, root_ + "/rows", options_);
  }
  tier->start_compaction(relocator_);
}

void FileTable::close() {
  tier.reset();
  checkpoints.reset();
}

void FileTable::check_space() const {
  tier->drain();
  const std::string path = *tier->stats().path;
  SsdHashStats stats = tier->detailed_stats();
  uint64_t bytes = bytes_in(path);
  // The tier's compaction thread may change the files between the two.
  for (int again = 0; again < 200 && bytes != stats.file_bytes; ++again) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stats = tier->detailed_stats();
    bytes = bytes_in(path);
  }
  check(bytes == stats.file_bytes, "the files take " + std::to_string(bytes) + " bytes, the tier says " +
                                       std::to_string(stats.file_bytes));
  const uint64_t bound = 2 * stats.live_rows * stats.record_bytes + options_.buffer_bytes;
  check(bytes - stats.held_bytes <= bound,
        "the files take " + std::to_string(bytes) + " bytes, of which checkpoints alone hold " +
            std::to_string(stats.held_bytes) + "; the bound is " + std::to_string(bound));
  check(stats.compaction_error.empty(), stats.compaction_error);
  check(stats.lost_records == 0 && stats.damaged_records == 0, "rows were lost");
  if (checkpoints != nullptr && kept().empty() && !checkpoints->has_pending()) {
    check(stats.held_bytes == 0, "a file is held for nobody");
  }
}

Table::Record FileTable::record_of(int64_t key) const {
  const int64_t version = index.at(key).version;
  for (const std::string& path : files_in(root_ + "/rows")) {
    const files::File file(files::system_file_calls(), path, O_RDONLY);
    RecordHeader header{};
    for (uint64_t n = 0; file.read_at(&header, sizeof header, shape.offset(n)) == sizeof header; ++n) {
      if (header.key != key || header.version != version || !header.is_whole()) continue;
      const std::string name = path + ": the record at " + std::to_string(shape.offset(n));
      return {path, shape.offset(n), name + " (key " + std::to_string(key) + ")", name};
    }
  }
  fail("no file has the row of key " + std::to_string(key));
}

// -- both -------------------------------------------------------------------------------------------------

std::unique_ptr<Table> TableSite::open(const TableIdentity& table) const {
  fs::create_directories(root + "/manifests");
  if (is_pool) {
    return std::make_unique<PoolTable>(root + "/manifests/table", table, slots, *libpmem, *calls);
  }
  SsdHashOptions with_calls = options;
  with_calls.file_calls = calls;
  return std::make_unique<FileTable>(root, with_calls, table, relocator);
}

std::string TableSite::manifest(uint64_t number) const {
  const std::string digits = std::to_string(number);
  return root + "/manifests/table" + (is_pool ? ".pool" : "") + ".checkpoint-" +
         std::string(10 - digits.size(), '0') + digits;
}

std::vector<std::string> TableSite::row_files() const {
  if (is_pool) return {root + "/manifests/table.pool"};
  return files_in(root + "/rows");
}

void TableSite::remove_all() const {
  for (const std::string& path : files_in(root)) fs::remove_all(path);
}

void on_both_media(const std::function<void(const TableSite&)>& scenario) {
  for (const bool is_pool : {true, false}) {
    const TemporaryDirectory directory;
    tested_case() = is_pool ? "in a pool" : "in files";
    scenario({.is_pool = is_pool, .root = directory.path()});
  }
  tested_case().clear();
}

}  // namespace embstore::log::testing
