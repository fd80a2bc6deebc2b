// A tier whose rows belong to the checkpoints of its table.
//
// A checkpoint is one thing, whatever tiers it spans: a manifest (log/manifest.h) that says, for each of these tiers, which
// records of which extents hold its rows. It is there when its manifest is. A tier sees to it that such records stay as they
// are and reach the medium; it writes nothing that says so itself. Records that no manifest names are garbage to whoever opens
// the tier next, whatever they say: nobody asks which record of a key is newest.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "tiers/log/row_bits.h"

namespace embstore {

inline constexpr size_t kMostCheckpoints = 16;  // of a table, kept and pending

// The records of one extent that hold rows of a checkpoint. An extent is a run of records that a tier takes and gives up as a
// whole: a file of SSDHASH, or all of a pool.
struct ExtentRows {
  uint64_t extent;    // its number, which is given once
  uint64_t capacity;  // records that it may hold
  log::RowWords rows;
};

struct TierRows {
  uint64_t checkpoint;  // the number of the checkpoint
  std::span<const ExtentRows> extents;
};

class DurableTier {
 public:
  virtual ~DurableTier() = default;

  // What an earlier process left, of each checkpoint that is kept, ascending. Everything else in the tier's files goes, and its
  // space comes back. Throws Error(kStorage), naming the file, where one that is needed isn't there whole, or is another
  // table's; nothing has changed then. REQUIRES: called once, before anything else; nothing is live then.
  virtual void take_up(std::span<const TierRows> kept) = 0;

  // All that is live now belongs to checkpoint `number`, which is greater than any before. Its records stay as they are until
  // it's dropped. Throws Error(kStorage) or std::bad_alloc; nothing has changed then.
  // REQUIRES: rows neither come nor go meanwhile, but for the tier's own compaction.
  virtual void begin_checkpoint(uint64_t number) = 0;
  // What the tier has of the checkpoint is on the medium when this returns, with the names of its files: says which records
  // these are. Rows may be written, read and erased meanwhile. Throws Error(kStorage), and may be called again.
  virtual std::vector<ExtentRows> bring_to_medium(uint64_t number) = 0;
  // Its records are free as far as nothing else needs them. Does nothing where there's no such checkpoint. What can't be
  // removed from the medium now goes when the tier is opened next. REQUIRES: no manifest of it is on the medium.
  virtual void drop_checkpoint(uint64_t number) noexcept = 0;

  // Makes the rows of a checkpoint live. Calls visit(headers, slots) for them, from so many threads at once. Throws
  // Error(kStorage), naming the file, if the header of a record isn't what was written, or whatever visit throws; nothing is
  // live then, and it may be tried again. Damage of a record's floats is no error here: whoever reads the row is told.
  // REQUIRES: nothing is live, nothing pending, no other call.
  using Restored = std::function<void(std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  virtual void restore(uint64_t number, int threads, const Restored& visit) = 0;
};

}  // namespace embstore
