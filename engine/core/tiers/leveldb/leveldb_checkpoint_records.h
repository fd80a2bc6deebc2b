// The records in which a database says what a table's checkpoints are; FORMAT.md has their bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "row/place.h"
#include "tiers/checkpoint_follower.h"
#include "tiers/leveldb/leveldb_database.h"

namespace embstore {

// Its rows: the records with smaller sequence numbers than `sequence_end`, but those at its dead places.
struct LevelDbCheckpoint {
  CheckpointName name;
  uint64_t sequence_end;
  uint64_t rows;
  uint64_t dead;  // places, where it was begun, of erased rows whose records were there still
};

// The order of the keys of rows' records.
inline bool comes_before(const Place& a, const Place& b) {
  return a.key != b.key ? a.key < b.key : a.slot < b.slot;
}

// Of one table. Every method throws Error(kStorage).
class LevelDbCheckpointRecords {
 public:
  LevelDbCheckpointRecords(LevelDbDatabase& database, uint32_t table, std::string table_name)
      : database_(database), table_(table), table_name_(std::move(table_name)) {}

  // Durable when the database is flushed. REQUIRES: dead.size() == checkpoint.dead.
  void put(const LevelDbCheckpoint& checkpoint, std::span<const Place> dead);
  // Throws where there's none that is whole with this name.
  LevelDbCheckpoint get(const CheckpointName& name) const;
  // Throws where one isn't as it was put. In the order that they were put in.
  std::vector<Place> dead_places(const LevelDbCheckpoint& checkpoint) const;
  void remove(const LevelDbCheckpoint& checkpoint);
  void remove_all_but(std::span<const CheckpointName> kept);

 private:
  [[noreturn]] void fail(const CheckpointName& name, const std::string& what) const;

  LevelDbDatabase& database_;
  const uint32_t table_;
  const std::string table_name_;  // for errors
};

// A table of a database whose rows stay: which number its keys have, and what its rows' slots are.
struct LevelDbTableRecord {
  uint32_t number;
  std::string optimizer;

  static std::string key_of(const std::string& table_name);
  std::string bytes(const std::string& table_name) const;
  // Nothing where it isn't whole.
  static std::optional<LevelDbTableRecord> of(const std::string& table_name, std::string_view value);
};

}  // namespace embstore
