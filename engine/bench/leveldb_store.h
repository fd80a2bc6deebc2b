// A yardstick of the benchmarks: rows in LevelDB as one keeps them without this engine, one record per
// key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tiers/leveldb/leveldb_library.h"

namespace embstore {

// For one thread at a time.
class LevelDbStore {
 public:
  // Creates the database at `directory`, with the options that are fastest for LEVELDB tiers. Throws
  // Error(kMissingLibrary) or Error(kStorage).
  LevelDbStore(std::string directory, size_t row_floats);
  ~LevelDbStore();
  LevelDbStore(const LevelDbStore&) = delete;
  LevelDbStore& operator=(const LevelDbStore&) = delete;

  size_t row_floats() const { return row_floats_; }

  // Writes all rows in one batch. A key that is there already gets the new row.
  void write(std::span<const int64_t> ids, const float* rows);
  // Reads the rows in ascending order of keys, which is the fastest. Throws Error(kStorage) if a key was
  // never written.
  void read(std::span<const int64_t> ids, float* rows) const;
  // Closes the database and leaves its files. REQUIRES, for all other calls: not closed.
  void close();

 private:
  struct Handles;

  void check(char* error) const;
  [[noreturn]] void fail(const std::string& what) const;

  const LevelDbLibrary& calls_;
  const std::string directory_;
  const size_t row_floats_;
  std::unique_ptr<Handles> handles_;  // null once closed
};

}  // namespace embstore
