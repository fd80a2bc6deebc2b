// The checkpoints of a table: which there are, pending and kept, over all of its durable tiers.
//
// A checkpoint begins at a batch's end in every durable tier. When all that it names is on the medium, its manifest is written,
// and it's there. A checkpoint is dropped by removing its manifest; only then its records are free.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "files/path_lock.h"
#include "threads/mutex.h"
#include "tiers/log/durable_tier.h"
#include "tiers/log/identity.h"
#include "tiers/log/manifest.h"

namespace embstore::log {

struct KeptCheckpoint {
  uint64_t number;
  CheckpointId id;
  uint64_t rows;
  TableMoment moment;
};

// Thread-safe, but that begin(), restore() and drop_all() are called while rows neither change nor move.
class Checkpoints {
 public:
  // Takes the table's files for this process alone, and reads the manifests: the lock and they are called `prefix` and an ending.
  // Nothing has changed on the medium. Throws InUseError, and what Manifests::load() throws.
  Checkpoints(const std::string& prefix, TableIdentity table,
              files::FileCalls& calls = files::system_file_calls());

  // With the uuid that new files get.
  const TableIdentity& table() const { return table_; }
  // True where an earlier process left checkpoints.
  bool any_found() const { return !found_.empty(); }
  // Has the durable tiers, the upper first, take up what is theirs. To be called once, before anything below. They outlive this.
  // Throws Error(kInvalidArgument) where the checkpoints found have another number of tiers, or what a tier throws.
  void take_up(std::vector<DurableTier*> tiers);

  // True from begin() to commit() or drop(), for any.
  bool has_pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // Begins the next one and says its number. `moment`: what the table is now, beside its rows. Throws Error(kStorage) where there
  // are kMostCheckpoints, or what a tier throws; nothing was begun then.
  uint64_t begin(const TableMoment& moment);
  // It's durable when this returns. Throws Error(kStorage); then it's still pending, and its manifest may be on the medium.
  // REQUIRES: all rows that belong to it are in the durable tiers.
  void commit(uint64_t number, const CheckpointId& id);
  // Gives up a checkpoint, kept or pending. Throws Error(kStorage) if its manifest can't be removed from the medium; the
  // checkpoint is kept then, and drop() may be called again. Throws Error(kInvalidArgument) while it's being committed.
  void drop(uint64_t number);

  // Ascending.
  std::vector<KeptCheckpoint> kept() const;

  // True where there are checkpoints of an earlier process, and neither restore() nor drop_all() was called.
  bool awaits_restore() const { return awaits_restore_.load(std::memory_order_acquire); }
  // Throws Error(kStorage) that says what to do where that is so.
  void check_is_taken_up() const;
  // Makes the rows of a kept checkpoint live. Calls visit(tier, headers, slots), with the number
  // of the durable tier, from so many threads at once. Throws Error(kStorage) where there's no such checkpoint or the header of a
  // record isn't what was written, or whatever visit throws; no checkpoint is gone then, what was made live in some tiers is for the caller
  // to erase, and it may be tried again.
  // REQUIRES: nothing is live, nothing pending.
  using Restored =
      std::function<void(size_t tier, std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  void restore(uint64_t number, int threads, const Restored& visit);
  // What was restored is the newest from now on.
  void drop_newer(uint64_t number);
  // Nothing is taken up any more: what is live is for the caller to erase.
  void await_restore();
  // Gives up what earlier processes left.
  void drop_all();
  // Gives up the pending checkpoints; one whose manifest may be on the medium, and can't be removed, is kept. To be called
  // before the tiers are closed.
  void drop_pending() noexcept;

 private:
  struct Checkpoint {
    KeptCheckpoint is;
    bool is_pending;
    bool is_being_committed;  // pending too
    bool may_have_manifest;   // on the medium: it was written, or that was tried
  };
  using List = std::vector<Checkpoint>;
  List::iterator find(uint64_t number) REQUIRES(mutex_);
  void drop(List::iterator checkpoint) REQUIRES(mutex_);
  void note_pending() REQUIRES(mutex_);

  const std::string prefix_;
  const files::PathLock lock_;  // given up last
  const Manifests manifests_;
  TableIdentity table_;
  std::vector<Manifest> found_;  // until they are taken up
  std::vector<DurableTier*> tiers_;

  mutable Mutex mutex_;  // tiers' own are taken under it; not held while the medium is waited for
  List checkpoints_ GUARDED_BY(mutex_);  // ascending
  uint64_t newest_number_ GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> pending_{0};  // how many
  std::atomic<bool> awaits_restore_{false};
};

}  // namespace embstore::log
