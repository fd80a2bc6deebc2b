// The interface of a tier whose rows belong to the checkpoints of its table.
//
// A checkpoint is one thing, whatever tiers it spans: a manifest (log/manifest.h) that says, for each durable
// tier, which records of which extents hold its rows. The checkpoint exists from the moment its manifest
// does. A tier makes sure that those records stay as they are and reach the medium; it writes no list of them
// itself. Records that no manifest names are garbage to the process that opens the tier next, whatever they
// contain: there is no search for a key's newest record.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "row/place.h"
#include "row/row_batch.h"
#include "tiers/log/row_bits.h"

namespace embstore {

inline constexpr size_t kMaxCheckpoints = 16;  // in a table, kept and pending together

// The records of one extent that hold rows of a checkpoint. An extent is a run of records that a tier
// allocates and frees as a whole: a file of SSDHASH, or all of a pool.
struct ExtentRows {
  uint64_t extent;    // its number, never used again
  uint64_t capacity;  // in records
  log::RowWords rows;
};

struct TierRows {
  uint64_t checkpoint;  // the number of the checkpoint
  std::span<const ExtentRows> extents;
};

class DurableTier {
 public:
  virtual ~DurableTier() = default;

  // Takes over what an earlier process left: `kept` has the tier's rows of each kept checkpoint, in ascending
  // order. Everything else in the tier's files is removed, and its space freed. Throws Error(kStorage),
  // naming the file, if a needed file is missing, incomplete, or another table's; then nothing has changed.
  // REQUIRES: called once, before anything else; nothing is live then.
  virtual void adopt_kept(std::span<const TierRows> kept) = 0;

  // Adds all live rows to the new checkpoint `number`, which is greater than any before. Their records stay
  // as they are until it's dropped. Throws Error(kStorage) or std::bad_alloc; then nothing has changed.
  // REQUIRES: rows neither come nor go meanwhile, except by the tier's own compaction.
  virtual void begin_checkpoint(uint64_t number) = 0;
  // Makes the tier's records of the checkpoint durable, with the names of its files, and returns which
  // records these are. Rows may be written, read and erased meanwhile. Throws Error(kStorage), and may be
  // called again.
  virtual std::vector<ExtentRows> make_durable(uint64_t number) = 0;
  // Frees the checkpoint's records that nothing else needs. Does nothing if there's no such checkpoint. Files
  // that can't be removed now are removed when the tier is opened next. REQUIRES: no manifest of the
  // checkpoint is on the medium.
  virtual void drop_checkpoint(uint64_t number) noexcept = 0;

  // Makes the rows of a checkpoint live. Calls visit(headers, slots) for them, on up to `threads` threads at
  // once. Throws Error(kStorage), naming the file, if the header of a record isn't what was written, or what
  // visit throws; then nothing is live, and the caller may try again. Damage to a record's floats is no error
  // here: the thread that reads the row gets it. REQUIRES: nothing is live, nothing pending, no other call.
  using Restored = std::function<void(std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  virtual void restore(uint64_t number, int threads, const Restored& visit) = 0;
};

}  // namespace embstore
