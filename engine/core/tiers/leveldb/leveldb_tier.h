// Rows in a LevelDB database; FORMAT.md has the records.
//
// A row's place is a record of its own: the record's key is the row's key and its slot, which is the
// sequence number of the write modulo kSlots. So a row that comes back while its old record is still to be deleted
// becomes a second record, a late deletion can't hit it, and records never change once they are written.
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

// Its meter counts what it asks of LevelDB, whose own files can't be looked at from outside: a read for each record that
// is read, and a write for each batch that goes to the log.
class LevelDbTier final : public Tier {
 public:
  static constexpr uint64_t kSlots = uint64_t{RowRef::kMaxSlots} + 1;

  // Keeps the table's rows in the database at the directory `path`, which tables of other names may share.
  // Throws what SharedLevelDb's constructor throws.
  LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
              const LevelDbOptions& options = {});

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A place without a record yields a row whose header has another key than the place. That is
  // an erased row, unless something still refers to the place: then the database lost it.
  void read_rows(RowBatch& rows, RowPart part) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  // Only notes the places, 16 bytes each: the next write(), drain(), or compact() that finds many, deletes the records.
  void erase(std::span<const Place> places) noexcept override;
  TierStats stats() const override;

  // Throws nothing: write() and drain() tell what keeps records from being deleted.
  void compact() override;
  // Deletes the records of every row erased so far.
  void drain() override;

 private:
  static constexpr size_t kManyErased = size_t{1} << 16;

  static constexpr Slot slot_of(uint64_t sequence) { return static_cast<Slot>(sequence % kSlots); }

  void note_erased(std::span<const Place> places) noexcept;
  // Deletes the records of every row erased so far, then writes `puts`, which has `bytes_put` bytes, unless it's null.
  void delete_erased_then(const LevelDbDatabase::Batch* puts, size_t bytes_put) REQUIRES(write_mutex_);
  LevelDbRowKey row_key(const Place& place) const { return leveldb_row_key(shared_.number(), place); }

  const RowLayout layout_;
  const LevelDbRowValue row_value_;
  const SharedLevelDb shared_;
  LevelDbDatabase& database_;

  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> reused_places_{0};

  // Held over a write: a slot's erased row is deleted before the slot comes again.
  Mutex write_mutex_;
  uint64_t next_sequence_ GUARDED_BY(write_mutex_) = 0;

  Mutex erased_mutex_;  // the innermost lock: never held over a call of the library
  std::vector<Place> erased_ GUARDED_BY(erased_mutex_);  // not deleted yet
  // So many of them compact() deletes: more after an error.
  std::atomic<size_t> compact_from_{kManyErased};
};

}  // namespace embstore
