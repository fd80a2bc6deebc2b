// One embedding table: rows by key, looked up and updated in batches.
//
// What it is made of: row_store.h (where rows are), mover.h (how they move), look_up.h (how they are read),
// batch_update.h (how they are updated), and what keep/ does to save, restore and outlive the process. Batches in a GPU's memory
// have a file of their own, table_on_device.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "access/phase_watcher.h"
#include "access/tier_meter.h"
#include "errors/error.h"
#include "keep/checkpoint/restore.h"
#include "keep/save.h"
#include "keep/table_checkpoint.h"
#include "keep/table_save.h"
#include "lookup/look_up.h"
#include "parts/table_parts.h"
#include "row/bags.h"
#include "threads/safe_point.h"
#include "update/batch_conditions.h"
#include "update/batch_update.h"
#include "update/gradient_batch.h"

namespace embstore {

struct TableStats {
  struct Level {
    TierStats tier;
    uint64_t rows;           // that the index refers to
    uint64_t capacity_rows;  // kUnlimitedRows: no limit
    std::vector<AccessCount> accesses;
  };
  uint64_t hits;         // ids looked up whose row was in the first of `tiers`
  uint64_t misses;       // the others
  uint64_t without_row;  // of the misses: ids that had no row in any tier
  uint64_t promotions;
  uint64_t demotions;
  uint64_t forgotten_accesses;  // of serving look-ups, while moves were held off
  uint64_t waiting_keys;        // that the filter keeps out
  uint64_t filter_bytes;        // memory of its counts
  uint64_t index_bytes;
  std::string background_error;  // of moves; empty if the last went well
  std::vector<Level> tiers;      // as they were asked for
};

enum class LookUpFor {
  kServing,     // counts for the ranking and promotes, soon after it returned
  kTraining,    // an apply follows, which does so
  kEvaluation,  // does neither
};

// Every method may be called from any thread and throws Error(kClosed) after close().
class Table {
 public:
  // Of a batch that threads share; fewer aren't worth waking one.
  static constexpr size_t kLeastIdsAThread = 2048;

  explicit Table(const TableSpec& spec);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& name() const { return parts_.name; }
  int dim() const { return parts_.layout.dim(); }
  int slot_count() const { return parts_.layout.slot_count(); }
  // What it's made of, for its tests.
  TableParts& parts() const { return parts_; }

  // Copies the rows of `ids` to `out`, ids.size() * dim floats; keys without a row read their initial
  // value. A row that is being updated is read as it was before or as it is after, never in between.
  // Throws DamagedRowsError when all other rows were read.
  // occurrences: how many ids each of `ids` stands for, of a look-up that doesn't serve; none: one.
  void lookup(std::span<const int64_t> ids, float* out, LookUpFor purpose,
              std::span<const uint32_t> occurrences = {}) const;

  // The same with ids and rows in the memory of device(): puts a look-up on their stream, and waits for nothing. A key that isn't in
  // that memory is read once, however often it occurs, and so it is of ids here where a tier is in a GPU's memory. Where more
  // was served than the host has counted, it first counts. While a save is under way the host does the work, and waits for the
  // stream. If the rows of some ids can't be read, they are NaN, and the error is raised by the next look-up, apply, save, drain() or synchronise().
  // Throws Error(kInvalidArgument) where no tier is in a GPU's memory.
  void lookup_on_device(const IdsOnDevice& ids, gpu::DeviceAddress out, LookUpFor purpose) const;
  // A batch of a variable whose partitions these are, in their order: each reads its part.
  struct LookUpOnDevice {
    std::span<const Table* const> partitions;
    IdsOnDevice ids;
    gpu::DeviceAddress out;
  };
  // Batches of several variables as one step, but those that the host does. REQUIRES: all are on one stream of one device.
  static void lookup_on_device(std::span<const LookUpOnDevice> batches, LookUpFor purpose);
  // Of the HBM tier.
  gpu::Device& device() const;
  // Waits until what was put on streams is done, and throws what it met.
  void synchronise() const;

  // A batch of gradients that can be applied: what may fail has been done. Several tables' batches are so applied all
  // or not at all. Holds the table's apply gate: to be ended soon, by the thread that made it.
  class PreparedApply {
   public:
    ~PreparedApply();
    PreparedApply(const PreparedApply&) = delete;
    PreparedApply& operator=(const PreparedApply&) = delete;
    // Once. `global_step` becomes the rows' version; without one, the count of applies so far.
    void commit(std::optional<int64_t> global_step);

   private:
    friend class Table;
    PreparedApply(Table& table, std::span<const int64_t> ids, const float* gradients,
                  std::span<const uint32_t> occurrences);

    class Scope;
    std::unique_ptr<Scope> scope_;
  };
  // Sums the gradients of equal ids, gives new keys a row if the filter admits them, and updates, when it's committed.
  // `gradients` outlives that. `occurrences`: how many ids each of `ids` stands for; none: one. Throws Error(kStoreFull), DamagedRowsError or what a tier throws; nothing has
  // changed then.
  std::unique_ptr<PreparedApply> prepare_apply(std::span<const int64_t> ids, const float* gradients,
                                               std::span<const uint32_t> occurrences = {});
  // Prepares and commits at once.
  void apply_gradients(std::span<const int64_t> ids, const float* gradients,
                       std::optional<int64_t> global_step, std::span<const uint32_t> occurrences = {});
  // Does the same, unless a gradient is NaN or infinite: then nothing changes, and the position of the first such value is returned,
  // among dim floats for each id. `bags`: gradients are dim floats for each bag, which all of its ids share.
  std::optional<size_t> apply_if_finite(std::span<const int64_t> ids, const float* gradients,
                                        std::optional<int64_t> global_step,
                                        const std::optional<Bags>& bags = std::nullopt);

  // Sets the rows of `keys`, which are distinct, or inserts them, whatever a filter says; whole or not at all, as an update.
  // `values`: dim weights for each key, and with `with_slots` dim floats for each slot. A new row's frequency is
  // `frequencies`', which is added to that of others; its version is `version`. No apply is counted.
  void put(std::span<const int64_t> keys, const float* values, bool with_slots,
           std::span<const uint32_t> frequencies, int64_t version);

  // The same with ids and gradients in the memory of device(), like lookup_on_device(). What may fail does so when the stream
  // gets there: then no row has changed, but the apply counts as one; the error is raised by the next call.
  // `conditions`: what is known of the batch on the device alone.
  void apply_on_device(const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                       std::optional<int64_t> global_step, const BatchConditions& conditions = {});
  // A batch of a variable whose partitions these are, in their order: each applies its part, or none does.
  struct ApplyOnDevice {
    std::span<Table* const> partitions;
    IdsOnDevice ids;
    gpu::DeviceAddress gradients;
    BatchConditions conditions;
  };
  // Batches of several variables as one step, but those that the host does. What one can't apply stops no other; the first error
  // is thrown when all have had their turn. REQUIRES: all are on one stream of one device, and no table is there twice.
  static void apply_on_device(std::span<const ApplyOnDevice> batches, std::optional<int64_t> global_step);

  // An apply whose batch is left out, as BatchConditions have it.
  void leave_out_apply();

  // --- Batches that will be trained, asked for ahead: their rows come up to the tier in a GPU's memory, in the background and as
  // many as fit, and stay there until the turn of the batch is over: when its apply begins, or after 16 more batches. Keys without
  // a row get none, and nothing is counted. All of them throw Error(kInvalidArgument) where no tier is in a GPU's memory.
  // The turn of the batch that comes after those which were asked for.
  uint64_t next_turn();
  // Of ids, some or all of a batch.
  void prefetch(std::span<const int64_t> ids, uint64_t turn);
  // The same with ids in the memory of device(), which the host reads when their stream gets there: once for the partitions of a
  // variable, in their order, of which each has a turn of its own. Waits for nothing.
  void prefetch_on_device(const IdsOnDevice& ids, uint64_t turn);
  static void prefetch_on_device(std::span<Table* const> partitions, const IdsOnDevice& ids,
                                 std::span<const uint64_t> turns);
  // What was asked for won't come.
  void forget_prefetched();

  void lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const;        // -1: no row
  void frequencies(std::span<const int64_t> ids, int64_t* frequencies) const;  // 0: no row
  void versions(std::span<const int64_t> ids, int64_t* versions) const;        // -1: no row

  uint64_t row_count() const;
  // The keys in the range that have a row, ascending.
  std::vector<int64_t> keys_in(KeyRange range) const;
  ExportedRows export_rows(OnDamage on_damage = OnDamage::kRaise) const;
  // The rows of `keys`, which ascend; those without one are left out.
  ExportedRows export_rows(std::span<const int64_t> keys, OnDamage on_damage) const;
  TableStats stats() const;

  // Has the phases of each tier that was asked for watched by what watcher_of gives for its number, until unwatch() of the
  // same owner.
  void watch(const void* owner, const std::function<std::shared_ptr<PhaseWatcher>(size_t level)>& watcher_of);
  void unwatch(const void* owner);
  // Whether somebody watches.
  bool is_watched() const { return is_watched_.load(std::memory_order_relaxed); }

  // Returns when every tier is within its capacity and nothing is being moved.
  void drain() const;

  // --- Checkpoints in durable tiers; see keep/table_checkpoint.h. All of them throw Error(kInvalidArgument) where the table was
  // made without.
  // What a checkpoint that was begun is known by, and the table as it was then.
  BegunCheckpoint begin_persist(checkpoint::Writer& file, bool waiting_keys);
  // Has all its rows in durable tiers, and it durable under this id.
  void finish_persist(uint64_t number, const log::CheckpointId& id);
  void drop_persisted(uint64_t number);
  std::vector<log::KeptCheckpoint> persisted() const;
  void restore_persisted(uint64_t number, checkpoint::Partition partition, const checkpoint::Chain& chain,
                         const TableState& state, bool waiting_keys);
  // True where none is under way and the tiers above the pool are full.
  bool should_persist() const;
  // Nothing is pending either, and a pool above another tier has used half of what it keeps for rows that change between
  // two checkpoints.
  bool is_pool_short() const;
  // True where there are checkpoints of an earlier process that were neither restored nor given up.
  bool awaits_restore() const;
  void await_restore();
  // Gives them up.
  void discard_persisted();

  // The keys whose row a medium doesn't give back as it was written, ascending. Reads every row.
  std::vector<int64_t> find_damaged() const;
  // Removes the rows of `keys`, wherever they are; says how many there were.
  uint64_t drop(std::span<const int64_t> keys);

  // Removes the rows that `eviction` says, as they are at one moment between two batches; says how many there were. Finds
  // them beside batches, as a save does.
  uint64_t evict(const EvictionRule& eviction);

  // A save that was not begun yet. Finds the rows that `eviction` says beside batches; begin() evicts them, and the save is of
  // the table as it is then. It writes every row, or for an incremental file those that were touched since the last
  // save that succeeded, and the keys removed since; and with `waiting_keys` those that the filter keeps out. On an error
  // nothing is lost but the rows that were evicted, which the next save tells of. Updates wait only if very many rows
  // change that the save has not written. A save ends soon, since close(), drop() and other saves wait for it.
  std::unique_ptr<TableSave> prepare_save(checkpoint::Writer& file, const EvictionRule& eviction);
  // Prepares, begins and writes.
  SavedTable save(checkpoint::Writer& file, const EvictionRule& eviction, bool waiting_keys,
                  OnDamage on_damage = OnDamage::kRaise);
  // What the save of that number wrote is safe: the next incremental save may leave it out. Says nothing where a newer save has
  // begun, which has all of it again.
  void save_succeeded(uint64_t number);
  // Replaces all rows by those that saves have; see keep/checkpoint/restore.h.
  void restore(checkpoint::Partition partition, const checkpoint::Chain& chain, const TableState& state,
               bool waiting_keys);

  // Of the filter, where it keeps a sketch.
  SketchShape sketch_shape() const { return parts_.filters.sketch_shape(); }
  // The step that an apply without one of its own gets next.
  int64_t apply_count();
  // Lets it be no less: partitions take over rows of different ages, and count together.
  void advance_apply_count(int64_t at_least);

  // By which the next apply trains; until it is set, what the optimizer was made with.
  double learning_rate() const;
  void set_learning_rate(double learning_rate);

  // --- Rows that are kept without a pool; see keep/kept_rows.h.
  bool keeps_rows() const { return parts_.store->tiers().keeps_rows(); }
  std::vector<log::CheckpointId> kept_rows() const;
  // keep_as: the id of the checkpoint that this table will make, the same in all partitions of a variable.
  void take_over_kept_rows(const log::CheckpointId* id, const log::CheckpointId& keep_as);
  // Makes the first checkpoint. REQUIRES: the table began with no rows, and has none yet.
  void keep_no_rows(const log::CheckpointId& id);
  // Ends the table as close() does, but that its files stay until that is called, and older checkpoints of its rows until
  // drop_older_rows(): the other partitions of a variable may not have theirs yet. REQUIRES: take_over_kept_rows() was called.
  void keep_rows();
  void drop_older_rows();

  // Waits for the operations under way and gives memory and files back. Where rows are kept (keep_files), and the table has begun with
  // some or none, makes a checkpoint of them first: throws Error(kStorage) where that fails, and nothing is lost until the table is destroyed. May be called again.
  void close();

 private:
  // What is left of lookup() in an operation, or in a function that a stream calls.
  // Of what doesn't serve. `update_follows`: an apply will want the rows of lower tiers again. Gives what is to be kept for it, or
  // null.
  BatchPtr look_up_to_train(std::span<const int64_t> ids, std::span<const uint32_t> occurrences,
                            bool update_follows, const RowsOut& out) const;
  // Gives what is to be counted. `last_positions` and `occurrences`: as of BatchInFlight. REQUIRES: there is a mover.
  BatchPtr look_up_to_serve(std::span<const int64_t> ids, std::span<const uint32_t> last_positions,
                            std::span<const uint32_t> occurrences, uint64_t first_stamp,
                            const RowsOut& out) const;
  // Whether several threads may share a batch. What is watched is one thread's: its times are to add up.
  bool may_share() const;
  // Ids that were looked up: how many, how many had their row in the first level, and how many had one at all.
  struct LookedUp {
    uint64_t ids;
    uint64_t hits;
    uint64_t with_row;
  };
  // `occurrences`: of the ids whose rows are at `refs`.
  LookedUp looked_up(std::span<const RowRef> refs, std::span<const uint32_t> occurrences) const;
  // `lower`: of what is below the first tier, some may be in the first level.
  LookedUp looked_up(uint64_t ids, uint64_t first_tier_hits, const BatchInFlight* lower) const;
  void count(const LookedUp& of) const;
  // --- Of steps on the device: table_on_device.cc.
  // What the host does, and waits for the stream.
  static void look_up_by_host(const LookUpOnDevice& batch, LookUpFor purpose);
  static void apply_by_host(const ApplyOnDevice& batch, std::optional<int64_t> global_step);
  // Nothing where the host does it. Throws what an earlier step met.
  static std::optional<DeviceLookUp::Batch> as_step(const LookUpOnDevice& batch, LookUpFor purpose);
  static std::optional<DeviceApply::Batch> as_step(const ApplyOnDevice& batch,
                                                   std::optional<int64_t> global_step);
  std::optional<DeviceLookUp::Share> share_of_look_up(uint32_t ids, LookUpFor purpose) const;
  bool make_room_in_log() const;
  DeviceApply::Share share_of_apply(uint32_t ids, std::optional<int64_t> global_step);
  // What the function of a step does.
  void read_missing(const DeviceLookUp::Missing& missing, LookUpFor purpose,
                    std::optional<uint64_t> first_stamp, const RowsOut& rows) const;
  class StepUpdate;
  StepClaims make_room_for_step(uint32_t ids);
  // An apply is one more. The state of the context is as begin_update() will have it, but for updates that come before.
  ApplyContext count_apply(std::optional<int64_t> global_step);
  // Its rows are updated: by the learning rate of the context, which gets what else the optimizer's own state is.
  void begin_update(ApplyContext& context);
  ApplyContext begin_apply(std::optional<int64_t> global_step);
  Error store_full(uint64_t new_rows) const;
  // Throws what a step on the device met.
  void raise_kept_error() const;
  static void raise_kept_errors(std::span<const Table* const> tables);

  // Of a table that has some.
  log::Checkpoints& checkpoints() const;

  // Reading counts, ranks and moves rows, but changes nothing of what the table says.
  mutable TableParts parts_;
  mutable std::atomic<uint64_t> hits_{0};
  mutable std::atomic<uint64_t> misses_{0};
  mutable std::atomic<uint64_t> without_row_{0};
  Mutex watch_mutex_;
  std::atomic<bool> is_watched_;

  void end_operations() REQUIRES(close_mutex_);

  Mutex close_mutex_;
  std::optional<log::CheckpointId> keep_as_ GUARDED_BY(close_mutex_);  // none: it hasn't begun
  bool rows_are_kept_ GUARDED_BY(close_mutex_) = false;
};

}  // namespace embstore
