// One level of storage below or at the top of a table, in batches.
//
// A tier stores whole rows and says where; it decides nothing. What lies where, how many rows a tier may
// hold, and who may touch a row while it moves is the business of the index and the mover.
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
  uint64_t row_bytes;     // of a row's floats
  uintptr_t address;      // of the first row; 0 where rows can't be addressed
  uint64_t mapped_bytes;  // of address space or of files
  std::optional<std::string> path;
  std::optional<bool> is_pmem;
  std::optional<std::string> io_scheme = {};  // by which files are read; nothing where that is no question
  std::optional<std::string> gpu = {};        // whose memory it is, as a person calls it
  // Whether a GPU reads rows where they lie, of a tier of memory below that of a GPU; nothing of others.
  std::optional<bool> is_pinned = {};
};

// Told by a tier that moves rows on its own accord (compaction).
class Relocator {
 public:
  virtual ~Relocator() = default;
  // Makes the index refer to `to` in place of `from`, for each of `rows`, and says which it did: where a key
  // isn't at `from` any more, `to` is garbage. The tier holds no lock of its own while it calls this;
  // erase() may be called by others meanwhile, with the index's locks held.
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

  // Counts how the tier's rows are touched: by the tier itself, and by those who reach rows of memory without it.
  TierMeter& meter() const { return *meter_; }

  // Stores every row of `rows` and says where. All or nothing: on an error (Error(kStorage), naming the
  // file) no place is taken. A row of a key that the tier has already is a new row; the old place stays
  // until it's erased.
  virtual void write(const RowBatch& rows, std::span<Slot> slots) = 0;
  // So many rows may be written before others are erased.
  virtual uint64_t free_places() const { return std::numeric_limits<uint64_t>::max(); }

  // Fills `rows` with the rows at rows.places(), in order; of kWeights the floats after the weights are
  // unspecified. A place that was erased meanwhile yields an unspecified row: the caller checks against the index afterwards. A place that was not erased yields its row, or the row is damaged: never is a damaged row
  // given back as whole, and never does an error keep other rows from being read.
  virtual void read_rows(RowBatch& rows, RowPart part) const = 0;
  // Fills `rows` with the rows at `places` for callers who need every row: throws DamagedRowsError, which has the
  // keys. Where a place may have been erased meanwhile, that error may speak of a row that isn't wanted any more.
  void read(std::span<const Place> places, RowBatch& rows, RowPart part = RowPart::kAll) const;
  // Throws Error(kDeviceLost) where all rows are damaged since the device that had them is lost: for those who would go on to
  // read others.
  virtual void check_not_lost() const {}

  // A number that changes before a place is given out that was given out before. So if it's the same as
  // before a place was read, and the place is still the row's, then the row is what was read.
  virtual uint64_t reused_places() const = 0;

  // REQUIRES: nothing refers to the places any more. Readers of them may still be under way.
  virtual void erase(std::span<const Place> places) = 0;

  virtual TierStats stats() const = 0;

  // --- How rows rank that stay where they are while serving look-ups ask for them. REQUIRES, unless it's said otherwise: the
  // mutex of the row's shard, and that the slot is the row's.

  // Has what these touch fetched; needs no mutex.
  virtual void prefetch_rank(Slot) const {}
  // Brings the rank in the row's header, as read_rows() gave it, up to date.
  virtual void update_rank(Slot, RowHeader&) const {}
  // The row ranks as the header says from now on. False, and it ranks as before, where the tier can't keep that.
  virtual bool try_set_rank(Slot, const RowHeader&) { return false; }
  // Whether it can, but for rows that were asked for too often. Needs no mutex.
  virtual bool can_set_ranks() const { return false; }
  // The row, which was copied from one slot to the other, ranks there as it did.
  virtual void carry_rank(Slot, Slot) {}
  // Whether the medium doesn't have the rank.
  virtual bool rank_goes_with_process(Slot) const { return false; }

  // --- Upkeep. To be called without locks, and free where there is nothing to do.

  // Rows may be moved by the tier itself from now on. `relocator` outlives the tier's use.
  virtual void start_compaction(Relocator&) {}
  // After erasures: gets the space back that they leave. Throws no Error, since those are made: drain() tells.
  virtual void compact() {}
  // Returns when that is done.
  virtual void drain() {}

  // Gives everything back, or leaves it whole where checkpoints are kept. Throws Error(kStorage) if that fails, and may be called
  // again. REQUIRES: no other call is under way, nor any after it.
  virtual void close() {}

 private:
  const std::unique_ptr<TierMeter> meter_;
};

}  // namespace embstore
