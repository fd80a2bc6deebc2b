// Shares LevelDB databases between the tables of a process.
//
// An open database holds five descriptors (its lock; LevelDB's LOCK, LOG, MANIFEST and log) and up to two
// write buffers, whatever its size: with a database for each partition of each variable, descriptors would
// run out. So the partitions of a variable, which are given one directory, share a database, in which each
// has its number. LevelDB maps up to 1000 row files of the process, which need no descriptor; of the others
// it keeps as many open, in all databases together, as a fifth of the process's limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "row/row_layout.h"
#include "tiers/leveldb/leveldb_database.h"

namespace embstore {

// One table's share of the database in a directory. The first table creates the database, the last one
// removes it.
class SharedLevelDb {
 public:
  // Throws what LevelDbDatabase's constructor throws, and InUseError if a table of the same name, or one of
  // another layout, uses the directory. `options` only count if the database isn't open yet.
  SharedLevelDb(const std::string& path, const std::string& table_name, const RowLayout& layout,
                const LevelDbOptions& options);
  ~SharedLevelDb();
  SharedLevelDb(const SharedLevelDb&) = delete;
  SharedLevelDb& operator=(const SharedLevelDb&) = delete;

  LevelDbDatabase& database() const { return *database_; }
  // The table's number in the database. It's never given out again, even after the table has closed.
  uint32_t number() const { return number_; }
  // Returns how many tables share the database now.
  size_t table_count() const;

 private:
  const std::string directory_;  // canonical
  const std::string table_name_;
  LevelDbDatabase* database_ = nullptr;
  uint32_t number_ = 0;
};

}  // namespace embstore
