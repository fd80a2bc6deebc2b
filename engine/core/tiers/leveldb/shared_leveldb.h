// LevelDB databases that the tables of a process share.
//
// An open database holds five descriptors (its lock; LevelDB's LOCK, LOG, MANIFEST and log) and up to two write
// buffers, whatever its size: a database for each partition of each variable would run out of them. So the partitions
// of a variable, which are given one directory, share one, where each has a number of its own.
// The files of rows need none up to 1000 in the process, which are mapped; of the others LevelDB keeps as many
// open, of all databases together, as a fifth of the process's limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "row/row_layout.h"
#include "tiers/leveldb/leveldb_database.h"

namespace embstore {

// One table's share of the database at a directory. The first table makes it, the last one removes it.
class SharedLevelDb {
 public:
  // Throws what LevelDbDatabase's constructor throws; InUseError too where a table of that name, or one
  // of another layout, has the directory. `options` count where the database isn't open yet.
  SharedLevelDb(const std::string& path, const std::string& table_name, const RowLayout& layout,
                const LevelDbOptions& options);
  ~SharedLevelDb();
  SharedLevelDb(const SharedLevelDb&) = delete;
  SharedLevelDb& operator=(const SharedLevelDb&) = delete;

  LevelDbDatabase& database() const { return *database_; }
  // No two tables of a database get the same one, not even one after the other.
  uint32_t number() const { return number_; }
  // How many tables share it now.
  size_t table_count() const;

 private:
  const std::string directory_;  // in one spelling
  const std::string table_name_;
  LevelDbDatabase* database_ = nullptr;
  uint32_t number_ = 0;
};

}  // namespace embstore
