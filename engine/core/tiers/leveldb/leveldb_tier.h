// A tier of rows in a LevelDB database; FORMAT.md describes the records.
//
// Each place has a record of its own, whose key is the row's key and its slot, which is the sequence number
// of the write modulo kSlots. So a row that comes back while its old record is still to be deleted becomes a
// second record, a late deletion can't remove the new one, and records never change once they are written.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "threads/mutex.h"
#include "tiers/leveldb/leveldb_record.h"
#include "tiers/leveldb/shared_leveldb.h"
#include "tiers/tier.h"

namespace embstore {

// The meter counts the calls of LevelDB, whose own file accesses can't be seen from outside: a read for each
// record that is read, and a write for each batch that goes to LevelDB's log.
class LevelDbTier final : public Tier {
 public:
  static constexpr uint64_t kSlots = uint64_t{RowRef::kMaxSlots} + 1;

  // Keeps the table's rows in the database in the directory `path`, which tables with other names may share.
  // Throws what SharedLevelDb's constructor throws.
  LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
              const LevelDbOptions& options = {});

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A place without a record yields a row whose header has another key than the place. The row was erased; if
  // something still refers to the place, the database has lost the row.
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  // Only notes the places, 16 bytes each. The next write() or drain(), or a compact() that finds many places,
  // deletes the records.
  void erase(std::span<const Place> places) noexcept override;
  TierStats stats() const override;

  // Throws nothing: write() and drain() report what keeps records from being deleted.
  void compact() override;
  // Deletes the records of every row erased so far.
  void drain() override;

 private:
  static constexpr size_t kManyErased = size_t{1} << 16;

  static constexpr Slot slot_of(uint64_t sequence) { return static_cast<Slot>(sequence % kSlots); }

  void note_erased(std::span<const Place> places) noexcept;
  // Deletes the records of all rows erased so far, then writes `puts`, which has `bytes_put` bytes, unless
  // it's null.
  void delete_erased_then(const LevelDbDatabase::Batch* puts, size_t bytes_put) REQUIRES(write_mutex_);
  LevelDbRowKey row_key(const Place& place) const { return leveldb_row_key(shared_.number(), place); }

  const RowLayout layout_;
  const LevelDbRowValue row_value_;
  const SharedLevelDb shared_;
  LevelDbDatabase& database_;

  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> reused_places_{0};

  // Held during a whole write: the erased row of a slot is deleted before the slot is used again.
  Mutex write_mutex_;
  uint64_t next_sequence_ GUARDED_BY(write_mutex_) = 0;

  Mutex erased_mutex_;  // the innermost lock: never held over a call of the library
  std::vector<Place> erased_ GUARDED_BY(erased_mutex_);  // not deleted yet
  // compact() deletes records from this many erased places on; the number grows after an error.
  std::atomic<size_t> compact_from_{kManyErased};
};

}  // namespace embstore
