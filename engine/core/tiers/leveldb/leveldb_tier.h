// Rows in a LevelDB database; FORMAT.md has the records.
//
// A row's place is a record of its own: the record's key is the row's key and its slot, which is the
// number of the write modulo kSlots. So a row that comes back while its old record is still to be deleted
// becomes a second record, a late deletion can't hit it, and records never change once they are written.
//
// A tier that follows a pool's checkpoints keeps its rows' records as long as a checkpoint needs them. It knows which by
// their sequence numbers, which tell what a checkpoint came after, and by the places that were erased and are still
// there: a checkpoint notes them as it begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "threads/mutex.h"
#include "tiers/checkpoint_follower.h"
#include "tiers/leveldb/erased_places.h"
#include "tiers/leveldb/leveldb_checkpoint_records.h"
#include "tiers/leveldb/leveldb_checkpoints.h"
#include "tiers/leveldb/leveldb_record.h"
#include "tiers/leveldb/leveldb_row_scan.h"
#include "tiers/leveldb/leveldb_slots.h"
#include "tiers/leveldb/shared_leveldb.h"
#include "tiers/tier.h"

namespace embstore {

// Its meter counts what it asks of LevelDB, whose own files can't be looked at from outside: a read for each record that
// is read, and a write for each batch that goes to the log.
class LevelDbTier final : public Tier, public CheckpointFollower {
 public:
  static constexpr uint64_t kSlots = kLevelDbSlots;

  // Keeps the table's rows in the database at the directory `path`, which tables of other names may share.
  // Throws what SharedLevelDb's constructor throws.
  LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
              const LevelDbOptions& options = {});
  // The same of rows that belong to a pool's checkpoints; take_up() comes next. The files stay as long as a checkpoint is
  // in them. `optimizer`, by its name, says what the rows' slots are.
  struct FollowsCheckpoints {
    std::string optimizer;
  };
  LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
              const FollowsCheckpoints& follows, const LevelDbOptions& options = {});

  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A place without a record yields a row whose header has another key than the place. That is
  // an erased row, unless something still refers to the place: then the database lost it.
  void read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                 std::vector<DamagedRow>& damaged) const override;
  uint64_t reused_places() const override { return reused_places_.load(std::memory_order_acquire); }
  // Takes note, no more: the records are deleted by the next write(), drain(), or compact() that finds many, unless a
  // checkpoint needs them. 16 bytes a place until then.
  void erase(std::span<const Place> places) noexcept override;
  TierStats stats() const override;

  // --- CheckpointFollower. REQUIRES: it was made with FollowsCheckpoints.
  void take_up(std::span<const CheckpointName> kept) override;
  // Copies the places that are erased and still there: 16 bytes each, until it's committed.
  void begin_checkpoint(uint64_t number) override;
  // Makes a file of what LevelDB has in memory, for all tables of the database.
  void commit_checkpoint(const CheckpointName& checkpoint) override;
  void drop_checkpoint(uint64_t number) noexcept override;
  uint64_t checkpoint_rows(uint64_t number) const override;
  // Reads every record of the table.
  void restore(const CheckpointName& checkpoint, int threads, const Restored& visit) override;

  void compact() override;
  // Deletes the records of every row erased so far, but those that a checkpoint needs.
  void drain() override;

 private:
  LevelDbTier(const std::string& table_name, const RowLayout& layout, const std::string& path,
              const LevelDbOptions& options, const FollowsCheckpoints* follows);

  void note_erased(std::span<const Place> places) noexcept;
  // Deletes the records of all erased rows that no checkpoint needs, then writes `puts`, of so many bytes, unless it's
  // null.
  void delete_erased_then(const LevelDbDatabase::Batch* puts, size_t bytes_put) REQUIRES(write_mutex_);
  // Moves what was erased to places_.
  enum class MayRead { kNo, kYes };
  void sort_erased(MayRead) REQUIRES(write_mutex_);
  std::optional<CheckpointSpan> needed_by(const Place& place, MayRead) const REQUIRES(write_mutex_);
  void count_deletable() noexcept REQUIRES(write_mutex_);
  // Sees to it that a slot isn't given out again while its record is there.
  void skip_taken_slots(int64_t key) REQUIRES(write_mutex_);

  // All of an earlier process's records are garbage, where it didn't come to restore() after take_up().
  void give_up_unrestored() REQUIRES(write_mutex_);
  void delete_all_rows() REQUIRES(write_mutex_);
  LevelDbScanned scan(std::optional<uint64_t> live, const std::vector<LevelDbScannedCheckpoint>& checkpoints,
                      int threads, const Restored& visit) const;
  void install(LevelDbScanned scanned) REQUIRES(write_mutex_);

  LevelDbRowKey row_key(const Place& place) const { return leveldb_row_key(shared_.number(), place); }

  const RowLayout layout_;
  const LevelDbRowValue row_value_;
  const SharedLevelDb shared_;
  LevelDbDatabase& database_;
  const std::optional<FollowsCheckpoints> follows_;
  const std::string table_name_;
  LevelDbCheckpointRecords records_;

  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> reused_places_{0};

  // Held over a write: a slot's erased row is deleted before the slot comes again.
  mutable Mutex write_mutex_;
  uint64_t next_sequence_ GUARDED_BY(write_mutex_) = 0;
  LevelDbCheckpoints checkpoints_ GUARDED_BY(write_mutex_);
  ErasedPlaces places_ GUARDED_BY(write_mutex_);
  bool is_unrestored_ GUARDED_BY(write_mutex_) = false;
  std::atomic<size_t> deletable_{0};  // of places_

  mutable Mutex erased_mutex_;  // the innermost lock: never held over a call of the library
  std::vector<Place> erased_ GUARDED_BY(erased_mutex_);  // not in places_ yet
  bool has_lost_erasures_ GUARDED_BY(erased_mutex_) = false;
};

}  // namespace embstore
