// A tier of rows in persistent memory that outlive the process: at checkpoints, which take whole batches.
//
// Rows are written out of place. A checkpoint is the set of slots that hold its rows; a slot of a checkpoint that is
// kept is never written. What is in no checkpoint that is kept is garbage to whoever opens the pool next.
// engine/FORMAT.md, section POOL, has the bytes, and why this is correct.
//
// Locks: a tier's own are innermost. Whoever wrote calls fence() before others may know of it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "files/file_calls.h"
#include "memory/libpmem.h"
#include "row/place.h"
#include "row/row_batch.h"
#include "row/row_layout.h"
#include "threads/mutex.h"
#include "tiers/checkpoint_follower.h"
#include "tiers/memory/slot_allocator.h"
#include "tiers/memory/slot_arrivals.h"
#include "tiers/memory/slot_ranks.h"
#include "tiers/pool/checkpoint_table.h"
#include "tiers/pool/durable_file.h"
#include "tiers/pool/format.h"
#include "tiers/pool/pool_files.h"
#include "tiers/pool/pool_lock.h"
#include "tiers/pool/slot_bits.h"
#include "tiers/pool/slot_references.h"
#include "tiers/ranked_tier.h"
#include "tiers/tier.h"

namespace embstore {

class Phase;

// What a pool is made for: rows of another table, or of other floats, are refused.
struct PoolIdentity {
  std::string table_name;
  std::string optimizer;
};

struct PoolCheckpoint {
  uint64_t number;  // ascending in a pool, never given again
  CheckpointId id;
  uint64_t rows;  // that the pool has of it
};

// Whether rows go on from the pool to a tier below it.
enum class PoolRole { kLast, kMiddle };

class PoolTier final : public Tier, public RankedTier {
 public:
  // Slots that stay for copies that may not be needed; see try_claim().
  static constexpr uint64_t kHeadroomSlots = 4096;
  static constexpr size_t kMostCheckpoints = 16;  // kept and pending

  // How many rows a pool of so many bytes has slots for, headroom included. 0 where there's no room for any.
  static uint64_t slots_for(const RowLayout& layout, uint64_t size_bytes);

  // Opens the pool at `path` (directory and the file's name without its ending), or makes it. Throws
  // Error(kStorage): in use, damaged, of another format version; Error(kInvalidArgument): of another table, dim or
  // optimizer, or larger than size_bytes. Each names the file. A pool that was made smaller grows to size_bytes; one
  // that has no checkpoint is as good as new.
  PoolTier(const std::string& path, const RowLayout& layout, const PoolIdentity& identity,
           uint64_t size_bytes, const LibPmem& libpmem = embstore::libpmem(),
           files::FileCalls& calls = files::system_file_calls(), PoolRole role = PoolRole::kLast);
  ~PoolTier() override;

  // --- Tier
  // Claims for itself, headroom included; fenced.
  void write(const RowBatch& rows, std::span<Slot> slots) override;
  // A row whose checksum is wrong is damaged. Those of rows that this process wrote, or has read, aren't computed.
  void read_rows(std::span<const Place> places, RowPart part, RowBatch& rows,
                 std::vector<DamagedRow>& damaged) const override;
  uint64_t reused_places() const override;
  // Places of a checkpoint stay taken until it's dropped. Doesn't fail.
  void erase(std::span<const Place> places) override;
  TierStats stats() const override;
  void close() override;

  // --- RankedTier
  // Of rows in the slots: by what they rank, as `served` and `stamp` were when they came. Of a pool in the middle, only of
  // those that are here: a clean copy of a row above has none.
  SlotRanks& ranks() const override { return *ranks_; }
  uint64_t slot_count() const override { return slots_.slots(); }
  uint64_t most_slots() const override { return slots_.slots(); }
  uint64_t untouched_from() const override { return slots_.untouched_from(); }
  int64_t key(Slot slot) const override;
  bool take_arrivals(std::vector<Slot>& slots) override;
  bool is_first() const override { return false; }

  uint64_t free_slots() const { return slots_.free_slots(); }  // neither taken nor claimed
  // Which pool has how many of them, for an error that says that they are too few.
  std::string described_room() const;

  // --- Claims: a row that changed above has a right to a slot.
  // False, and nothing is claimed, where that would leave less than the headroom.
  bool try_claim(uint64_t count) { return slots_.try_claim(count, kHeadroomSlots); }
  // The same, for whoever can do without: so many slots are left that were set aside.
  bool try_claim_spare(uint64_t count) {
    return slots_.try_claim(count, kHeadroomSlots + set_aside_.load(std::memory_order_relaxed));
  }
  void set_aside(uint64_t slots) { set_aside_.store(slots, std::memory_order_relaxed); }
  void give_claim_back(uint64_t count) { slots_.give_claim_back(count); }
  // Writes a row for which a slot was claimed, and says where it is. Not fenced. Can't fail.
  // is_live: something will refer to it; else it's written for checkpoints alone.
  Slot write_claimed(const RowHeader& header, const float* floats, bool is_live) noexcept;
  // One of several rows, which the caller's phase at this tier counts.
  Slot write_claimed(const RowHeader& header, const float* floats, bool is_live, Phase& phase) noexcept;
  // A clean copy is the row again. How it ranks now, the copy doesn't keep durably.
  void was_copy(Slot slot, const RowHeader& header) noexcept;
  // The row is above from now on, and what is in the slot is its clean copy.
  void is_copy(Slot slot) noexcept {
    if (role_ == PoolRole::kMiddle) ranks_->empty(slot);
  }
  // What this thread wrote is durable when this returns.
  void fence() noexcept { rows_->drain(); }

  // --- Checkpoints
  // True from begin_checkpoint() to commit or drop, for any.
  bool has_pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // Checkpoint `number`, greater than any before: all that is live now belongs to it. Throws Error(kStorage) where
  // kMostCheckpoints are kept, std::bad_alloc; nothing has changed then. REQUIRES: no other call is under way.
  void begin_checkpoint(uint64_t number);
  // The row in `slot` belongs to every pending checkpoint from `first_number` on. Where there's none any more, and the row
  // isn't live, the slot is free.
  void add_to_checkpoints(uint64_t first_number, Slot slot) noexcept;
  // Everything that belongs to it is durable, and it is, when this returns. REQUIRES: fence() was called by all who wrote for it.
  // Throws Error(kStorage); then it's still pending.
  void commit_checkpoint(uint64_t number, const CheckpointId& id);
  // Kept or pending; there's no such checkpoint from now on, and its slots are free as far as nothing else needs them.
  void drop_checkpoint(uint64_t number);
  // Those that are durable, ascending.
  std::vector<PoolCheckpoint> checkpoints() const;
  // No number so far was greater.
  uint64_t newest_number() const { return newest_number_.load(std::memory_order_acquire); }

  // --- Restoring
  // True where there are checkpoints of an earlier process, and neither restore() nor start_over() was called.
  bool awaits_restore() const { return awaits_restore_; }
  // Throws Error(kStorage) that says what to do where that is so.
  void check_is_taken_up() const;
  // Makes the rows of a durable checkpoint live, and drops those that are newer than it, durably. Calls visit(headers,
  // slots) for its rows, from so many threads at once; it reads nothing but headers: floats are checked when they are
  // read. Throws Error(kStorage) where there's no such checkpoint, or a record isn't what it should be, or whatever
  // visit throws; nothing is live then, and it may be tried again. Only where newer ones can't be dropped durably may
  // some of them be gone.
  // REQUIRES: nothing is live (everything was erased, or nothing was written), nothing pending, no other call.
  using Restored = std::function<void(std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  void restore(uint64_t number, int threads, const Restored& visit);
  // Drops all checkpoints: what earlier processes left is given up.
  void start_over();

 private:
  struct Checkpoint {
    PoolCheckpoint is;
    size_t entry;
    bool is_pending;
  };

  PoolTier(const RowLayout& layout, PoolRole role, pool::PoolFiles files);
  void take_up_checkpoints();

  void put(Slot slot, const RowHeader& header, const float* floats, Phase& phase) noexcept;
  void fill_rank(Slot slot, const RowHeader& header) noexcept;
  void rank(Slot slot, const RowHeader& header) noexcept;  // of a row that came to the slot
  static bool is_of(const pool::RecordHeader& record, const Place& place);
  // Nothing, or what is wrong with the row that was read from the slot.
  const char* fault_of(const pool::RecordHeader& record, const Place& place, RowPart part,
                       const float* floats) const;
  std::vector<Checkpoint>::iterator find(uint64_t number) REQUIRES(mutex_);
  void drop(std::vector<Checkpoint>::iterator checkpoint) REQUIRES(mutex_);
  void note_pending() REQUIRES(mutex_);

  const RowLayout layout_;
  const pool::RecordShape shape_;
  const PoolRole role_;
  const std::string path_;  // of the rows
  std::unique_ptr<pool::PoolLock> lock_;
  std::unique_ptr<pool::DurableFile> rows_;
  std::unique_ptr<SlotRanks> ranks_;
  SlotAllocator slots_;
  std::atomic<uint64_t> set_aside_{0};
  pool::SlotReferences references_;
  // Of rows that an earlier process wrote, and that weren't read as a whole yet: what this one writes comes back as it
  // was, and what didn't reach the medium shows only to the next.
  mutable pool::SlotBits unverified_;

  Mutex arrivals_mutex_;
  SlotArrivals arrivals_ GUARDED_BY(arrivals_mutex_);

  mutable Mutex mutex_;
  std::unique_ptr<pool::CheckpointTable> table_ PT_GUARDED_BY(mutex_);
  std::vector<Checkpoint> checkpoints_ GUARDED_BY(mutex_);  // ascending
  std::atomic<uint64_t> newest_number_{0};
  std::atomic<uint64_t> pending_{0};          // how many
  std::atomic<uint64_t> next_checkpoint_{1};  // the first that what is written now may belong to
  bool awaits_restore_ = false;
};

}  // namespace embstore
