#include "tiers/leveldb/leveldb_database.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "tiers/leveldb/leveldb_record.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

// Returns whether LevelDB leaves such a file of a database that it couldn't finish creating.
bool is_unfinished(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "LOCK" || name == "LOG" || name == "LOG.old" || name.starts_with("MANIFEST-") ||
         name.ends_with(".dbtmp");
}

// LevelDB reports errors as text only.
bool is_about_descriptors(const std::string& reason) {
  return reason.find(std::strerror(EMFILE)) != std::string::npos;
}

std::string advice_on_descriptors() {
  rlimit limit{};
  const std::string most =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::to_string(limit.rlim_cur) : std::string("no more");
  return "; this process may have " + most +
         " files open. A variable's LEVELDB tier holds 5, and all of them together up to a fifth of the "
         "limit for the files of rows: raise it (ulimit -n), or open fewer variables at a time";
}

}  // namespace

LevelDbDatabase::LevelDbDatabase(std::string path, const RowLayout& layout, const LevelDbOptions& options)
    : calls_(leveldb_library()),
      path_(std::move(path)),
      lock_(path_),
      open_options_(calls_, options),
      read_options_(calls_.readoptions_create(), {calls_.readoptions_destroy}),
      write_options_(calls_.writeoptions_create(), {calls_.writeoptions_destroy}) {
  // No block checksums, since records have their own: a block's would cost a pass over the block for every
  // row.
  calls_.readoptions_set_verify_checksums(read_options_.get(), 0);
  try {
    make_empty(layout);
  } catch (...) {
    close();
    throw;
  }
}

LevelDbDatabase::~LevelDbDatabase() {
  close();
  char* error = nullptr;
  calls_.destroy_db(open_options_.handle.get(), path_.c_str(), &error);
  calls_.free_text(error);  // what can't be removed stays; the next database at this path removes it
}

uint64_t LevelDbDatabase::file_bytes() const {
  uint64_t total = 0;
  std::error_code ignored;  // files are created and removed meanwhile
  for (fs::directory_iterator file(path_, ignored), end; !ignored && file != end; file.increment(ignored)) {
    std::error_code gone;
    const uintmax_t bytes = file->file_size(gone);
    if (!gone) total += bytes;
  }
  return total;
}

// --- Making and closing.

void LevelDbDatabase::make_empty(const RowLayout& layout) {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_directory(status)) fail("is a file; give a directory");
  // If this fails, LevelDB's own error says what is wrong.
  if (fs::exists(fs::path(path_) / "CURRENT", error)) {
    refuse_fifos();
    remove_leftover();
  } else if (fs::is_directory(status)) {
    refuse_foreign_files();
  }
  open(/*make=*/true);
  const LevelDbFormatRecord record = LevelDbFormatRecord::of(layout);
  Batch batch = make_batch();
  put(batch, LevelDbFormatRecord::kKey, record.bytes());
  write(batch);
}

void LevelDbDatabase::remove_leftover() {
  open(/*make=*/false);
  const uint32_t version = read_format_version();
  if (version == LevelDbFormatRecord::kCheckpointsVersion) {
    fail(
        "has format version 3, which earlier versions of this program wrote below a durable pool; restore "
        "the variable with such a version and es.save() it, give another directory, or remove this one to "
        "go without its rows");
  }
  if (version != LevelDbFormatRecord::kVersion) {
    fail("has format version " + std::to_string(version) + "; this program writes version " +
         std::to_string(LevelDbFormatRecord::kVersion) + "; remove the directory to go without its rows");
  }
  close();
  char* error = nullptr;
  calls_.destroy_db(open_options_.handle.get(), path_.c_str(), &error);
  check(error, "can't remove the rows that an earlier process left");
}

// The magic and the version come first in every version.
uint32_t LevelDbDatabase::read_format_version() const {
  constexpr size_t kVersionEnd = offsetof(LevelDbFormatRecord, version) + sizeof(uint32_t);
  LevelDbFormatRecord record{};
  const Value value = get(LevelDbFormatRecord::kKey);
  if (value.data != nullptr && value.size >= kVersionEnd) {
    std::memcpy(&record, value.data.get(), kVersionEnd);
  }
  if (record.magic != LevelDbFormatRecord::kMagic) {
    fail("is a LevelDB database of something else; give another directory");
  }
  return record.version;
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

// Refuses FIFOs: LevelDB would wait for another process to open them.
void LevelDbDatabase::refuse_fifos() const {
  std::error_code error;
  for (fs::directory_iterator file(path_, error), end; !error && file != end; file.increment(error)) {
    if (file->is_fifo(error)) {
      fail("holds " + file->path().filename().string() +
           ", which is a FIFO; remove the directory to go without its rows");
    }
  }
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
  char* error = nullptr;
  calls_.write(database_, write_options_.get(), batch.get(), &error);
  check(error, "can't write",
        "; LevelDB may take no more writes after that, even where there is room again: save the table, whose "
        "rows can be read, and make it anew");
}

LevelDbDatabase::Value LevelDbDatabase::get(std::string_view key) const {
  char* error = nullptr;
  size_t size = 0;
  LevelDbOwned<char> data(calls_.get(database_, read_options_.get(), key.data(), key.size(), &size, &error),
                          {calls_.free_text});
  check(error, "can't read");
  return {std::move(data), size};
}

void LevelDbDatabase::check(char* error, const char* what, const char* advice) const {
  if (error == nullptr) return;
  std::string reason = error;
  calls_.free_text(error);
  if (is_about_descriptors(reason)) reason += advice_on_descriptors();
  // "lock FILE: already held by process", or by another one: "lock FILE: Resource temporarily ...".
  if (reason.find("lock " + path_) != std::string::npos) throw InUseError(path_, reason);
  fail(std::string(what) + ": " + reason + advice);
}

void LevelDbDatabase::fail(const std::string& what) const {
  throw Error(ErrorKind::kStorage, path_ + ": " + what);
}

}  // namespace embstore
