#include "tiers/leveldb/leveldb_database.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "files/file.h"
#include "tiers/leveldb/leveldb_manifest.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

// What LevelDB leaves of a database that it couldn't finish making.
bool is_unfinished(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "LOCK" || name == "LOG" || name == "LOG.old" || name.starts_with("MANIFEST-") ||
         name.ends_with(".dbtmp") || name == WorthlessMark::kName;
}

// LevelDB tells of errors by text alone.
bool is_about_descriptors(const std::string& reason) {
  return reason.find(std::strerror(EMFILE)) != std::string::npos;
}

bool is_about_missing_files(const std::string& reason) {
  return reason.find(" missing files; e.g.: ") != std::string::npos;
}

std::string advice_on_descriptors() {
  rlimit limit{};
  const std::string most =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::to_string(limit.rlim_cur) : std::string("no more");
  return "; this process may have " + most +
         " files open. A variable's LEVELDB tier holds 4, and all of them together up to a fifth of the "
         "limit for the files of rows: raise it (ulimit -n), or open fewer variables at a time";
}

}  // namespace

LevelDbDatabase::LevelDbDatabase(std::string path, const RowLayout& layout, const LevelDbOptions& options,
                                 LevelDbRows rows)
    : calls_(leveldb_library()),
      path_(std::move(path)),
      rows_(rows),
      mark_(path_),
      open_options_(calls_, options),
      read_options_(calls_.readoptions_create(), {calls_.readoptions_destroy}),
      scan_options_(calls_.readoptions_create(), {calls_.readoptions_destroy}),
      write_options_(calls_.writeoptions_create(), {calls_.writeoptions_destroy}) {
  // Records carry a checksum of their own: a block's would cost a pass over the block for every row.
  calls_.readoptions_set_verify_checksums(read_options_.get(), 0);
  // Whoever scans wants to know what is missing, too: what a damaged block would have had.
  calls_.readoptions_set_verify_checksums(scan_options_.get(), 1);
  calls_.readoptions_set_fill_cache(scan_options_.get(), 0);
  try {
    make_or_take_over(layout);
  } catch (...) {
    close();
    throw;
  }
}

LevelDbDatabase::~LevelDbDatabase() { leave(); }

uint64_t LevelDbDatabase::file_bytes() const {
  uint64_t total = 0;
  std::error_code ignored;  // files come and go meanwhile
  for (fs::directory_iterator file(path_, ignored), end; !ignored && file != end; file.increment(ignored)) {
    std::error_code gone;
    const uintmax_t bytes = file->file_size(gone);
    if (!gone) total += bytes;
  }
  return total;
}

// --- Making and closing.

void LevelDbDatabase::make_or_take_over(const RowLayout& layout) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_directory(status)) fail("is a file; give a directory");
  if (mark_.is_there()) {
    destroy("can't remove what an earlier process was making or removing");
    if (rows_ == LevelDbRows::kOfTheProcess) unmark_emptied();
  }
  // Where it can't be asked, LevelDB says what's wrong.
  if (fs::exists(fs::path(path_) / "CURRENT", error)) {
    if (rows_ == LevelDbRows::kOfCheckpoints) return take_over(layout);
    remove_leftover();
  } else if (fs::is_directory(status)) {
    refuse_foreign_files();
  }
  make(layout);
}

void LevelDbDatabase::make(const RowLayout& layout) {
  const bool stays = rows_ == LevelDbRows::kOfCheckpoints;
  if (stays) {
    mark_.put();
    is_marked_ = true;
  }
  open(/*make=*/true);
  const LevelDbFormatRecord record = LevelDbFormatRecord::of(
      layout, stays ? LevelDbFormatRecord::kCheckpointsVersion : LevelDbFormatRecord::kVersion);
  Batch batch = make_batch();
  put(batch, LevelDbFormatRecord::kKey, record.bytes());
  write(batch);
}

void LevelDbDatabase::remove_leftover() {
  open(/*make=*/false);
  const LevelDbFormatRecord record = read_format();
  if (record.version == LevelDbFormatRecord::kCheckpointsVersion) {
    fail(
        "has format version 3, that of rows of durable checkpoints: open the variable with its durability, "
        "give another directory, or remove this one to go without its rows");
  }
  if (record.version != LevelDbFormatRecord::kVersion) {
    fail("has format version " + std::to_string(record.version) + "; this program writes version " +
         std::to_string(LevelDbFormatRecord::kVersion) + "; remove the directory to go without its rows");
  }
  close();
  destroy("can't remove the rows that an earlier process left");
}

void LevelDbDatabase::take_over(const RowLayout& layout) {
  keep_leveldb_manifest(path_);
  try {
    open(/*make=*/false);
  } catch (const Error& error) {
    if (!is_about_missing_files(error.what()) || !take_last_change_out_of_leveldb_manifest(path_)) throw;
    try {
      open(/*make=*/false);
    } catch (const Error&) {
      put_leveldb_manifest_back(path_);
      throw error;
    }
  }
  release_leveldb_manifest(path_);
  const LevelDbFormatRecord record = read_format();
  if (record.version == LevelDbFormatRecord::kVersion) {
    fail(
        "has format version 2, that of a variable without durability, whose process died; remove the "
        "directory to go without its rows, or give another one");
  }
  if (record.version != LevelDbFormatRecord::kCheckpointsVersion) {
    fail("has format version " + std::to_string(record.version) + "; this program takes over version " +
         std::to_string(LevelDbFormatRecord::kCheckpointsVersion) +
         "; remove the directory to go without its rows");
  }
  if (!record.is_whole()) fail("is damaged: the checksum of its format record is wrong");
  if (record.dim != static_cast<uint32_t>(layout.dim()) ||
      record.slot_count != static_cast<uint32_t>(layout.slot_count())) {
    fail("has rows of dim " + std::to_string(record.dim) + " with " + std::to_string(record.slot_count) +
         " optimizer slots, and the variable's have dim " + std::to_string(layout.dim()) + " with " +
         std::to_string(layout.slot_count()) +
         "; open it as it was, or remove the directory to go without its rows");
  }
}

// All of it where the magic and the version, which come first in every version, say that there's more.
LevelDbFormatRecord LevelDbDatabase::read_format() const {
  constexpr size_t kVersionEnd = offsetof(LevelDbFormatRecord, version) + sizeof(uint32_t);
  LevelDbFormatRecord record{};
  const Value value = get(LevelDbFormatRecord::kKey);
  if (value.data != nullptr && value.size >= kVersionEnd) {
    std::memcpy(&record, value.data.get(), std::min(value.size, sizeof(record)));
  }
  if (record.magic != LevelDbFormatRecord::kMagic) {
    fail("is a LevelDB database of something else; give another directory");
  }
  return record;
}

void LevelDbDatabase::refuse_foreign_files() const {
  std::error_code error;
  for (fs::directory_iterator file(path_, error), end; !error && file != end; file.increment(error)) {
    if (is_unfinished(file->path())) continue;
    fail("holds " + file->path().filename().string() +
         ", which is not LevelDB's; give a directory that is empty or isn't there");
  }
  if (error) fail("can't be listed: " + error.message());
}

void LevelDbDatabase::open(bool make) {
  calls_.options_set_create_if_missing(open_options_.handle.get(), make ? 1 : 0);
  calls_.options_set_error_if_exists(open_options_.handle.get(), make ? 1 : 0);
  char* error = nullptr;
  database_ = calls_.open(open_options_.handle.get(), path_.c_str(), &error);
  check(error, "can't open it");
}

void LevelDbDatabase::close() noexcept {
  if (database_ != nullptr) calls_.close(std::exchange(database_, nullptr));
}

void LevelDbDatabase::destroy(const char* what) {
  char* error = nullptr;
  calls_.destroy_db(open_options_.handle.get(), path_.c_str(), &error);
  check(error, what);
}

// The mark goes when nothing can come back that it speaks of.
void LevelDbDatabase::unmark_emptied() {
  files::sync_directory(files::system_file_calls(), path_);
  mark_.remove();
}

void LevelDbDatabase::leave() noexcept {
  const bool stays = rows_ == LevelDbRows::kOfCheckpoints;
  try {
    if (stays && has_checkpoints()) return close();
    if (stays) mark_.put();
    close();
    destroy("can't remove it");
    if (!stays) return;
    unmark_emptied();
    fs::remove(path_);
  } catch (const std::exception&) {
    close();  // what can't be removed stays; the next database at this path removes it
  }
}

bool LevelDbDatabase::has_checkpoints() const {
  bool any = false;
  scan(std::string(1, kLevelDbCheckpointPrefix), [&](std::string_view, std::string_view) { any = true; });
  return any;
}

// --- Durability.

// LevelDB has no call for it. A write with `sync` brings the log that it goes to to the medium, and not one before it
// whose rows wait in memory to become a file. So they are all made files.
void LevelDbDatabase::make_durable() {
  const auto alone = [&] {
    const ApplyGate::Alone without_writers(writers_);
    return empty_newest_log();
  };
  if (!empty_newest_log() && !alone()) {
    write(make_batch());  // throws where LevelDB has stopped, and says why
    fail("can't bring rows to the medium: LevelDB keeps its log " + newest_log() +
         "; there may be no room for another");
  }
  if (!is_marked_) return;
  mark_.remove();
  is_marked_ = false;
}

// When LevelDB compacts a range, it makes files of the rows in memory first, and records them in its manifest; both are
// synced, and the directory too. It tells no errors then; but a log goes only when all that it had is in the manifest's
// files, and it goes before the compaction's turn comes. For the rows in memory it puts an empty write in line, which
// does nothing when a writer that is before it takes it along: so it may fail for no fault while others write.
bool LevelDbDatabase::empty_newest_log() {
  const std::string log = newest_log();
  // Keys that no record has: so there's no file to compact.
  constexpr std::string_view kFirst = "\xff", kLast = "\xff\xff";
  calls_.compact_range(database_, kFirst.data(), kFirst.size(), kLast.data(), kLast.size());
  std::error_code error;
  return !fs::exists(fs::path(path_) / log, error) && !error;
}

std::string LevelDbDatabase::newest_log() const {
  std::string newest;
  std::error_code error;
  for (fs::directory_iterator file(path_, error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename().string();
    std::error_code gone;
    if (!name.ends_with(".log") || !file->is_regular_file(gone)) continue;
    // Numbers have leading zeros, and may grow longer.
    if (std::pair(name.size(), name) > std::pair(newest.size(), newest)) newest = name;
  }
  if (error) fail("can't be listed: " + error.message());
  if (newest.empty()) fail("has no log: LevelDB's files were removed while it was open");
  return newest;
}

// --- Reading and writing.

LevelDbDatabase::Batch LevelDbDatabase::make_batch() const {
  return {calls_.writebatch_create(), {calls_.writebatch_destroy}};
}

void LevelDbDatabase::put(Batch& batch, std::string_view key, std::string_view value) const {
  calls_.writebatch_put(batch.get(), key.data(), key.size(), value.data(), value.size());
}

void LevelDbDatabase::remove(Batch& batch, std::string_view key) const {
  calls_.writebatch_delete(batch.get(), key.data(), key.size());
}

void LevelDbDatabase::append(Batch& batch, const Batch& more) const {
  calls_.writebatch_append(batch.get(), more.get());
}

void LevelDbDatabase::clear(Batch& batch) const { calls_.writebatch_clear(batch.get()); }

void LevelDbDatabase::write(const Batch& batch) {
  const ApplyGate::Shared among_writers(writers_);
  char* error = nullptr;
  calls_.write(database_, write_options_.get(), batch.get(), &error);
  check(error, "can't write");
}

LevelDbDatabase::Value LevelDbDatabase::get(std::string_view key) const {
  char* error = nullptr;
  size_t size = 0;
  LevelDbOwned<char> data(calls_.get(database_, read_options_.get(), key.data(), key.size(), &size, &error),
                          {calls_.free_text});
  check(error, "can't read");
  return {std::move(data), size};
}

void LevelDbDatabase::scan(std::string_view first, std::string_view end, const Visit& visit) const {
  const LevelDbOwned<LevelDbLibrary::Iterator> at(calls_.create_iterator(database_, scan_options_.get()),
                                                  {calls_.iter_destroy});
  for (calls_.iter_seek(at.get(), first.data(), first.size()); calls_.iter_valid(at.get()) != 0;
       calls_.iter_next(at.get())) {
    size_t key_bytes = 0, value_bytes = 0;
    const char* const key = calls_.iter_key(at.get(), &key_bytes);
    if (std::string_view(key, key_bytes) >= end) break;
    const char* const value = calls_.iter_value(at.get(), &value_bytes);
    visit({key, key_bytes}, {value, value_bytes});
  }
  char* error = nullptr;
  calls_.iter_get_error(at.get(), &error);
  check(error, "can't read");
}

std::string LevelDbDatabase::end_of(std::string prefix) {
  // As a number, carrying.
  for (size_t i = prefix.size(); i-- > 0;) {
    if (++prefix[i] != '\0') break;
  }
  return prefix;
}

uint64_t LevelDbDatabase::file_bytes_of(std::string_view first, std::string_view end) const {
  const char* const first_key = first.data();
  const char* const end_key = end.data();
  const size_t first_bytes = first.size(), end_bytes = end.size();
  uint64_t bytes = 0;
  calls_.approximate_sizes(database_, 1, &first_key, &first_bytes, &end_key, &end_bytes, &bytes);
  return bytes;
}

void LevelDbDatabase::check(char* error, const char* what) const {
  if (error == nullptr) return;
  std::string reason = error;
  calls_.free_text(error);
  if (is_about_descriptors(reason)) reason += advice_on_descriptors();
  // "lock FILE: already held by process", or by another one: "lock FILE: Resource temporarily ...".
  if (reason.find("lock " + path_) != std::string::npos) throw InUseError(path_, reason);
  fail(std::string(what) + ": " + reason);
}

void LevelDbDatabase::fail(const std::string& what) const {
  throw Error(ErrorKind::kStorage, path_ + ": " + what);
}

}  // namespace embstore
