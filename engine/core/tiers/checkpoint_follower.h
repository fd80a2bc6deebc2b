// A last tier whose rows take part in the checkpoints of the durable pool above it.
//
// The pool leads: a checkpoint is there when the pool has it (tiers/pool/pool_tier.h). A follower makes what it has of
// a checkpoint durable before the pool commits, and gives it up only after the pool has dropped it; so whatever the
// pool has, the follower has too. As in the pool, a checkpoint is the set of places that hold its rows. Records in
// other places are garbage to whoever restores it, whatever they say: nobody asks which record of a key is newest.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "row/place.h"
#include "row/row_batch.h"

namespace embstore {

using CheckpointId = std::array<uint8_t, 16>;

// Numbers ascend, and none is given twice; the id is drawn at random.
struct CheckpointName {
  uint64_t number;
  CheckpointId id;
};

class CheckpointFollower {
 public:
  virtual ~CheckpointFollower() = default;

  // What an earlier process left: `kept` are the checkpoints that the pool has, ascending. The tier has no live row then;
  // what belongs to none of them goes, and its space comes back. Throws Error(kStorage), naming the file, where one of them isn't
  // there whole, or is of another table, dim or optimizer; nothing has changed then.
  // REQUIRES: called once, before anything else.
  virtual void take_up(std::span<const CheckpointName> kept) = 0;

  // All that is live now belongs to checkpoint `number`, which is pending. Places that belong to one, kept or pending,
  // are given out again only when it's dropped. Throws Error(kStorage) or std::bad_alloc; nothing has changed then.
  // REQUIRES: rows neither come nor go meanwhile, but for the tier's own compaction.
  virtual void begin_checkpoint(uint64_t number) = 0;
  // What the tier has of the pending checkpoint is durable when this returns. Rows may be written, read and erased
  // meanwhile. Throws Error(kStorage); it's still pending then, and this may be called again.
  virtual void commit_checkpoint(const CheckpointName& checkpoint) = 0;
  // Kept or pending: its places are free as far as nothing else needs them. Does nothing where there's none. What can't
  // be removed from the medium now goes when the tier is opened next.
  virtual void drop_checkpoint(uint64_t number) noexcept = 0;

  // How many rows the tier has of a kept checkpoint; 0 where there's no such.
  virtual uint64_t checkpoint_rows(uint64_t number) const = 0;
  // Makes its rows live. Calls visit(headers, slots) for them, from so many threads at once. Newer checkpoints stay until
  // they are dropped. Throws Error(kStorage), naming the file, where there's no such checkpoint or a record of it isn't
  // what was written, or whatever visit throws; nothing is live then, and it may be tried again.
  // REQUIRES: nothing is live, nothing pending, no other call, and no lock is held that Relocator::relocate() takes.
  using Restored = std::function<void(std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  virtual void restore(const CheckpointName& checkpoint, int threads, const Restored& visit) = 0;
};

}  // namespace embstore
