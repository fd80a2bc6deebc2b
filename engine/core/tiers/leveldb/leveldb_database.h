// A LevelDB database in a directory of its own: it's created empty, and removed when the process closes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "files/path_lock.h"
#include "row/row_layout.h"
#include "tiers/leveldb/leveldb_library.h"
#include "tiers/leveldb/leveldb_open_options.h"

namespace embstore {

// Any number of threads may read and write.
class LevelDbDatabase {
 public:
  // A record's value. The object owns the bytes.
  struct Value {
    LevelDbOwned<char> data;  // null if there is no such record
    size_t size;
    std::string_view bytes() const { return {data.get(), size}; }
  };
  using Batch = LevelDbOwned<LevelDbLibrary::WriteBatch>;

  // Creates the database in the directory `path`; empties a database that a dead process left there. Throws
  // Error(kMissingLibrary), InUseError, or Error(kStorage), which names `path`, if something else is there.
  LevelDbDatabase(std::string path, const RowLayout& layout, const LevelDbOptions& options);
  ~LevelDbDatabase();
  LevelDbDatabase(const LevelDbDatabase&) = delete;
  LevelDbDatabase& operator=(const LevelDbDatabase&) = delete;

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const;

  Batch make_batch() const;
  void put(Batch& batch, std::string_view key, std::string_view value) const;
  void remove(Batch& batch, std::string_view key) const;
  void append(Batch& batch, const Batch& more) const;
  void clear(Batch& batch) const;
  // Writes all of the batch or nothing. Throws Error(kStorage).
  void write(const Batch& batch);
  // Throws Error(kStorage).
  Value get(std::string_view key) const;

  // Throws Error(kStorage), which names the directory.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void make_empty(const RowLayout& layout);
  void remove_leftover();
  uint32_t read_format_version() const;
  void refuse_foreign_files() const;
  void refuse_fifos() const;
  void open(bool make);
  void close() noexcept;
  // Frees `error`, and throws what it says, if it isn't null.
  void check(char* error, const char* what, const char* advice = "") const;

  const LevelDbLibrary& calls_;
  const std::string path_;
  // LevelDB's own lock isn't enough: it's released between two of its calls, and is a file that destroy_db()
  // removes.
  const files::PathLock lock_;
  const LevelDbOpenOptions open_options_;
  const LevelDbOwned<LevelDbLibrary::ReadOptions> read_options_;
  const LevelDbOwned<LevelDbLibrary::WriteOptions> write_options_;
  LevelDbLibrary::Database* database_ = nullptr;
};

}  // namespace embstore
