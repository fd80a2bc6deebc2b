// Reading what records of rows a table's checkpoints have, by several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "row/place.h"
#include "tiers/checkpoint_follower.h"
#include "tiers/leveldb/erased_places.h"
#include "tiers/leveldb/leveldb_checkpoint_records.h"
#include "tiers/leveldb/leveldb_database.h"
#include "tiers/leveldb/leveldb_record.h"

namespace embstore {

struct LevelDbScannedCheckpoint {
  LevelDbCheckpoint is;
  std::vector<Place> dead;  // in the keys' order
};

// What else the table has in the database.
struct LevelDbScanned {
  uint64_t live = 0;
  uint64_t sequence_end = 0;  // greater than that of any record
  ErasedPlaces garbage;
};

// The records of one table, at the time of a scan.
class LevelDbRowScan {
 public:
  // `checkpoints`, ascending, are all that need records. Rows of checkpoint `live`, where there's one, are live.
  LevelDbRowScan(const LevelDbDatabase& database, const LevelDbRowValue& value, uint32_t table,
                 std::span<const LevelDbScannedCheckpoint> checkpoints, std::optional<uint64_t> live)
      : database_(database), value_(value), table_(table), checkpoints_(checkpoints), live_(live) {}

  // Calls visit(headers, slots) for the live ones, from so many threads. Throws Error(kStorage) where one of them isn't what
  // was written, or what visit throws.
  LevelDbScanned run(int threads, const CheckpointFollower::Restored& visit) const;

 private:
  class Piece;

  // Boundaries of so many pieces of the table's keys, of about as many bytes each.
  std::vector<std::string> boundaries(size_t pieces) const;

  const LevelDbDatabase& database_;
  const LevelDbRowValue& value_;
  const uint32_t table_;
  const std::span<const LevelDbScannedCheckpoint> checkpoints_;
  const std::optional<uint64_t> live_;
};

}  // namespace embstore
