// A LevelDB database in a directory of its own. One of rows that go with the process is made empty, and removed in the
// end; one of rows that belong to checkpoints is taken over, and stays as long as there's a checkpoint in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "row/row_layout.h"
#include "threads/apply_gate.h"
#include "tiers/leveldb/leveldb_library.h"
#include "tiers/leveldb/leveldb_open_options.h"
#include "tiers/leveldb/leveldb_record.h"
#include "tiers/leveldb/worthless_mark.h"

namespace embstore {

enum class LevelDbRows { kOfTheProcess, kOfCheckpoints };

// Any number of threads may read and write.
class LevelDbDatabase {
 public:
  // A record's value; it ends with this.
  struct Value {
    LevelDbOwned<char> data;  // null where there is no such record
    size_t size;
    std::string_view bytes() const { return {data.get(), size}; }
  };
  using Batch = LevelDbOwned<LevelDbLibrary::WriteBatch>;

  // Makes the database at the directory `path`; of the process's rows, empties one that a process left when it died.
  // Throws Error(kMissingLibrary), InUseError, or Error(kStorage), which names `path`: there is something
  // else, such as rows of the other kind.
  LevelDbDatabase(std::string path, const RowLayout& layout, const LevelDbOptions& options,
                  LevelDbRows rows = LevelDbRows::kOfTheProcess);
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
  // All of it or nothing. Throws Error(kStorage).
  void write(const Batch& batch);
  // Throws Error(kStorage).
  Value get(std::string_view key) const;

  // Calls visit(key, value) for the records from `first` up to `end`, without that, in the keys' order, as they are
  // now. Blocks' checksums are checked. Throws Error(kStorage), or what visit throws.
  using Visit = std::function<void(std::string_view key, std::string_view value)>;
  void scan(std::string_view first, std::string_view end, const Visit& visit) const;
  // Of those whose keys begin so.
  void scan(const std::string& prefix, const Visit& visit) const { scan(prefix, end_of(prefix), visit); }
  // Comes after all keys that begin so. REQUIRES: a byte of it isn't the greatest.
  static std::string end_of(std::string prefix);
  // About how many bytes of files hold those records.
  uint64_t file_bytes_of(std::string_view first, std::string_view end) const;

  // All that was written before the call is durable when this returns. Throws Error(kStorage).
  // REQUIRES: rows of checkpoints.
  void make_durable();

  // Throws Error(kStorage), which names the directory.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void make_or_take_over(const RowLayout& layout);
  void make(const RowLayout& layout);
  void remove_leftover();
  void take_over(const RowLayout& layout);
  LevelDbFormatRecord read_format() const;
  void refuse_foreign_files() const;
  void destroy(const char* what);
  void unmark_emptied();
  void leave() noexcept;
  bool has_checkpoints() const;
  bool empty_newest_log();
  std::string newest_log() const;
  void open(bool make);
  void close() noexcept;
  // Throws where `error`, which is freed, isn't null.
  void check(char* error, const char* what) const;

  const LevelDbLibrary& calls_;
  const std::string path_;
  const LevelDbRows rows_;
  const WorthlessMark mark_;
  std::atomic<bool> is_marked_{false};
  ApplyGate writers_;  // alone: without any beside
  const LevelDbOpenOptions open_options_;
  const LevelDbOwned<LevelDbLibrary::ReadOptions> read_options_;
  const LevelDbOwned<LevelDbLibrary::ReadOptions> scan_options_;
  const LevelDbOwned<LevelDbLibrary::WriteOptions> write_options_;
  LevelDbLibrary::Database* database_ = nullptr;
};

}  // namespace embstore
