// The interface of a tier: one level of a table's storage, which reads and writes rows in batches.
//
// A tier stores whole rows and returns their places; it decides nothing. The index and the mover decide which
// rows lie in it, how many it may hold, and who may touch a row while it moves.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"

namespace embstore {

class TierMeter;

struct TierStats {
  std::string name;
  uint64_t rows;
  uint64_t row_bytes;     // bytes of one row's floats
  uintptr_t address;      // of the first row; 0 if rows have no addresses
  uint64_t mapped_bytes;  // bytes of address space or of files
  std::optional<std::string> path;
  std::optional<bool> is_pmem;
  std::optional<std::string> io_scheme = {};  // how files are read; only SSDHASH sets it
  std::optional<std::string> gpu = {};        // name of the GPU that has the memory
  // Set only for a memory tier below an HBM tier: whether the GPU reads its rows in place.
  std::optional<bool> is_pinned = {};
};

// The interface that a tier calls when it moves rows of its own accord (compaction).
class Relocator {
 public:
  virtual ~Relocator() = default;
  // For each of `rows`, makes the index refer to `to` instead of `from`, and sets `done`. If the key is no
  // longer at `from`, `done` stays false and `to` is garbage. The tier holds no lock of its own during the
  // call; other threads may call erase() meanwhile, with the index's locks held.
  struct Relocation {
    int64_t key;
    Slot from;
    Slot to;
    bool done = false;
  };
  virtual void relocate(std::span<Relocation> rows) = 0;
};

enum class RowPart { kAll, kWeights };

class Tier {
 public:
  Tier();
  virtual ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // Counts the accesses to the tier's rows: its own, and those of callers that reach rows in memory directly.
  TierMeter& meter() const { return *meter_; }

  // Stores every row of `rows` and sets `slots` to their places. All or nothing: on an error
  // (Error(kStorage), naming the file) no place is taken. A key that the tier already has gets a second row;
  // the old place stays until it's erased.
  virtual void write(const RowBatch& rows, std::span<Slot> slots) = 0;
  // Returns how many rows can be written before some must be erased.
  virtual uint64_t free_places() const { return std::numeric_limits<uint64_t>::max(); }

  // Fills `rows` with the rows at rows.places(), in order. With kWeights, the floats after the weights are
  // unspecified. A place that was erased meanwhile yields an unspecified row: the caller checks against the
  // index afterwards. A place that was not erased yields its row, or the row is reported as damaged: a
  // damaged row is never returned as whole, and an error never keeps other rows from being read.
  virtual void read_rows(RowBatch& rows, RowPart part) const = 0;
  // Fills `rows` with the rows at `places`, for callers that need every row: throws DamagedRowsError with the
  // keys of damaged rows. If a place may have been erased meanwhile, the error may name a row that is no
  // longer wanted.
  void read(std::span<const Place> places, RowBatch& rows, RowPart part = RowPart::kAll) const;
  // Throws Error(kDeviceLost) if the device that holds the rows is lost, so that all of them are damaged. For
  // callers that would otherwise go on to read more.
  virtual void check_not_lost() const {}

  // Returns a number that changes before a place is given out a second time. If the number is the same as
  // before a place was read, and the place is still the row's, then that row is what was read.
  virtual uint64_t reused_places() const = 0;

  // REQUIRES: nothing refers to the places any more. Threads may still be reading them.
  virtual void erase(std::span<const Place> places) = 0;

  virtual TierStats stats() const = 0;

  // --- The ranks of rows that stay here while serving look-ups ask for them. REQUIRES, unless stated
  // otherwise: the mutex of the row's shard is held, and the row is in the slot.

  // Prefetches the memory that these functions touch; needs no mutex.
  virtual void prefetch_rank(Slot) const {}
  // Updates the rank in a header that read_rows() returned.
  virtual void update_rank(Slot, RowHeader&) const {}
  // Ranks the row as the header says from now on. Returns false, and leaves the rank as it was, if the tier
  // can't store it.
  virtual bool try_set_rank(Slot, const RowHeader&) { return false; }
  // Returns whether try_set_rank() works, except for rows with too many accesses. Needs no mutex.
  virtual bool can_set_ranks() const { return false; }
  // Gives the second slot the rank of the first, from which its row was copied.
  virtual void carry_rank(Slot, Slot) {}
  // Returns whether the rank is only in memory, not on the medium.
  virtual bool rank_is_volatile(Slot) const { return false; }

  // --- Upkeep. Called without locks; cheap if there is nothing to do.

  // Lets the tier move rows from now on. `relocator` outlives the tier's use of it.
  virtual void start_compaction(Relocator&) {}
  // Called after erasures: gets their space back. Throws no Error, since the erasures are done; drain()
  // reports errors.
  virtual void compact() {}
  // Returns when compact() has nothing left to do.
  virtual void drain() {}

  // Releases everything, or leaves the rows on the medium if checkpoints are kept. Throws Error(kStorage) if
  // that fails, and may be called again. REQUIRES: no other call is under way or follows.
  virtual void close() {}

 private:
  const std::unique_ptr<TierMeter> meter_;
};

}  // namespace embstore
