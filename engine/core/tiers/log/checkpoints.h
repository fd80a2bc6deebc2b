// The checkpoints of a table, pending and kept, over all of its durable tiers.
//
// A checkpoint begins at a batch's end, in every durable tier at once. When all that it names is on the
// medium, its manifest is written, and from then on the checkpoint exists. To drop a checkpoint is to remove
// its manifest; only then are its records free.
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

// Thread-safe, except that begin(), restore() and drop_all() REQUIRE that rows neither change nor move
// meanwhile.
class Checkpoints {
 public:
  // Locks the table's files for this process, and reads the manifests. The names of the lock and of the
  // manifests are `prefix` and an ending. Changes nothing on the medium. Throws InUseError, and what
  // Manifests::load() throws.
  Checkpoints(const std::string& prefix, TableIdentity table,
              files::FileCalls& calls = files::system_file_calls());

  // Includes the uuid that new files get.
  const TableIdentity& table() const { return table_; }
  // Returns whether an earlier process left checkpoints.
  bool any_found() const { return !found_.empty(); }
  // Tells the durable tiers, the upper first, which records the checkpoints have. Call it once, before the
  // functions below. The tiers outlive this object. Throws Error(kInvalidArgument) if the checkpoints found
  // have another number of tiers, or what a tier throws.
  void adopt_kept(std::vector<DurableTier*> tiers);

  // Returns whether any checkpoint is between its begin() and its commit() or drop().
  bool has_pending() const { return pending_.load(std::memory_order_acquire) != 0; }
  // Begins the next checkpoint and returns its number. `moment` is the table's state beside its rows. Throws
  // Error(kStorage) if there are kMaxCheckpoints, or what a tier throws; then nothing was begun.
  uint64_t begin(const TableMoment& moment);
  // Makes a pending checkpoint durable. Throws Error(kStorage); then it's still pending, and its manifest may
  // be on the medium. REQUIRES: all rows that belong to it are in the durable tiers.
  void commit(uint64_t number, const CheckpointId& id);
  // Drops a checkpoint, kept or pending. Throws Error(kStorage) if its manifest can't be removed from the
  // medium; the checkpoint is kept then, and drop() may be called again. Throws Error(kInvalidArgument) while
  // the checkpoint is being committed.
  void drop(uint64_t number);

  // Returns the kept checkpoints, in ascending order.
  std::vector<KeptCheckpoint> kept() const;

  // Returns whether there are checkpoints of an earlier process, and neither restore() nor drop_all() was
  // called.
  bool awaits_restore() const { return awaits_restore_.load(std::memory_order_acquire); }
  // Throws Error(kStorage), which says what to do, if awaits_restore().
  void check_not_awaiting_restore() const;
  // Makes the rows of a kept checkpoint live. Calls visit(tier, headers, slots), with the number of the
  // durable tier, on up to `threads` threads at once. Throws Error(kStorage) if there's no such checkpoint or
  // the header of a record isn't what was written, or what visit throws. Then no checkpoint is lost, the
  // caller erases the rows that some tiers have made live, and may try again. REQUIRES: no row is live, no
  // checkpoint is pending.
  using Restored =
      std::function<void(size_t tier, std::span<const RowHeader> headers, std::span<const Slot> slots)>;
  void restore(uint64_t number, int threads, const Restored& visit);
  // Drops the checkpoints after `number`, so that the restored one is the newest.
  void drop_newer(uint64_t number);
  // Undoes restore(): awaits_restore() is true again if there are checkpoints. The caller erases the live
  // rows.
  void await_restore();
  // Drops all checkpoints; for those that earlier processes left.
  void drop_all();
  // Drops the pending checkpoints. If a manifest may be on the medium and can't be removed, its checkpoint is
  // kept. Called before the tiers are closed.
  void drop_pending() noexcept;

 private:
  struct Checkpoint {
    KeptCheckpoint is;
    bool is_pending;
    bool is_being_committed;  // pending too
    bool may_have_manifest;   // on the medium: a write of it was begun
  };
  using List = std::vector<Checkpoint>;
  List::iterator find(uint64_t number) REQUIRES(mutex_);
  void drop(List::iterator checkpoint) REQUIRES(mutex_);
  void note_pending() REQUIRES(mutex_);

  const std::string prefix_;
  const files::PathLock lock_;  // released last
  const Manifests manifests_;
  TableIdentity table_;
  std::vector<Manifest> found_;  // until adopt_kept()
  std::vector<DurableTier*> tiers_;

  mutable Mutex mutex_;  // taken before the tiers' mutexes; not held while the medium is waited for
  List checkpoints_ GUARDED_BY(mutex_);  // ascending
  uint64_t newest_number_ GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> pending_{0};  // how many are pending
  std::atomic<bool> awaits_restore_{false};
};

}  // namespace embstore::log
