// A yardstick of the benchmarks: rows in LevelDB as one keeps them without this engine, a record a key.
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
  // Makes the database at `directory`, with the options that LEVELDB tiers were found to be fastest with.
  // Throws Error(kMissingLibrary) or Error(kStorage).
  LevelDbStore(std::string directory, size_t row_floats);
  ~LevelDbStore();
  LevelDbStore(const LevelDbStore&) = delete;
  LevelDbStore& operator=(const LevelDbStore&) = delete;

  size_t row_floats() const { return row_floats_; }

  // In one batch. A key that is there already gets the new row.
  void write(std::span<const int64_t> ids, const float* rows);
  // In ascending order of keys, which is the fastest. Throws Error(kStorage) where one was never written.
  void read(std::span<const int64_t> ids, float* rows) const;
  // Leaves the files. REQUIRES, of the others: not closed.
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
