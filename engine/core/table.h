// One embedding table: rows by key, looked up and updated in batches.
//
// Its parts: row_store.h (where rows are), mover.h (how they move), look_up.h (how they are read),
// batch_update.h (how they are updated), and keep/ (how they are saved, restored, and outlive the process).
// Batches in a GPU's memory have a file of their own, table_on_device.cc.
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
    uint64_t rows;           // that the index has there
    uint64_t capacity_rows;  // kUnlimitedRows: no limit
    std::vector<AccessCount> accesses;
  };
  uint64_t hits;         // ids looked up whose row was in the first of `tiers`
  uint64_t misses;       // all other ids
  uint64_t without_row;  // misses without a row in any tier
  uint64_t promotions;
  uint64_t demotions;
  uint64_t forgotten_accesses;  // served accesses never counted, since moves were held off or failed
  uint64_t waiting_keys;        // keys that the filter keeps out
  uint64_t filter_bytes;        // memory of the filter's counts
  uint64_t index_bytes;
  std::string background_error;  // of the last move; empty if it went well
  std::vector<Level> tiers;      // of the storage type, in order
};

enum class LookUpPurpose {
  kServing,     // counts accesses for the ranking and promotes rows, soon after the look-up returned
  kTraining,    // counts nothing: the apply that follows does
  kEvaluation,  // neither counts nor promotes
};

// Every method may be called from any thread and throws Error(kClosed) after close().
class Table {
 public:
  // The fewest ids of a shared batch that a thread gets: for fewer it isn't worth waking a thread.
  static constexpr size_t kMinIdsAThread = 2048;

  explicit Table(const TableSpec& spec);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& name() const { return parts_.name; }
  int dim() const { return parts_.layout.dim(); }
  int slot_count() const { return parts_.layout.slot_count(); }
  // The table's parts, for tests and for table_on_device.cc.
  TableParts& parts() const { return parts_; }

  // Copies the rows of `ids` to `out`, ids.size() * dim floats; keys without a row read their initial value.
  // A row that is being updated is read as it was before or as it is after, never in between. Throws
  // DamagedRowsError for rows that can't be read, after it has read all others. `occurrences` (only for
  // look-ups that don't serve): how many ids each of `ids` stands for; empty: one each.
  void lookup(std::span<const int64_t> ids, float* out, LookUpPurpose purpose,
              std::span<const uint32_t> occurrences = {}) const;

  // The same with ids and rows in the memory of device(): puts a look-up on the ids' stream, and waits for
  // nothing. A key that isn't in that memory is read once, however often it occurs (as lookup() does if a
  // tier is in a GPU's memory). If the log of served accesses is full, the host first counts them. While a
  // save is under way the host does the work, and waits for the stream. Rows that can't be read become NaN,
  // and the next look-up, apply, save, drain() or synchronise() throws the error. Throws
  // Error(kInvalidArgument) if no tier is in a GPU's memory.
  void lookup_on_device(const IdsOnDevice& ids, gpu::DeviceAddress out, LookUpPurpose purpose) const;
  // A batch of a variable with these partitions, in their order: each table reads its part.
  struct LookUpOnDevice {
    std::span<const Table* const> partitions;
    IdsOnDevice ids;
    gpu::DeviceAddress out;
  };
  // Looks up batches of several variables as one step, except those that the host does. REQUIRES: all are on
  // one stream of one device.
  static void lookup_on_device(std::span<const LookUpOnDevice> batches, LookUpPurpose purpose);
  // The HBM tier's device. Throws Error(kInvalidArgument) if there is no such tier.
  gpu::Device& device() const;
  // Waits until the work put on streams is done, and throws the error that it met, if any.
  void synchronise() const;

  // A batch of gradients that is ready to be applied: everything that may fail is done. So batches of several
  // tables are applied all or not at all. Holds the table's apply gate: end it soon, in the thread that made
  // it.
  class PreparedApply {
   public:
    ~PreparedApply();
    PreparedApply(const PreparedApply&) = delete;
    PreparedApply& operator=(const PreparedApply&) = delete;
    // Applies the batch. Called at most once. `global_step` becomes the rows' version; without one, the count
    // of applies so far.
    void commit(std::optional<int64_t> global_step);

   private:
    friend class Table;
    PreparedApply(Table& table, std::span<const int64_t> ids, const float* gradients,
                  std::span<const uint32_t> occurrences);

    class Scope;
    std::unique_ptr<Scope> scope_;
  };
  // Prepares an update. Its commit() sums the gradients of equal ids, gives new keys a row if the filter
  // admits them, and updates the rows. REQUIRES: `gradients` stay valid until then. `occurrences`: how many
  // ids each of `ids` stands for; empty: one each. Throws Error(kStoreFull), DamagedRowsError or what a tier
  // throws; nothing has changed then.
  std::unique_ptr<PreparedApply> prepare_apply(std::span<const int64_t> ids, const float* gradients,
                                               std::span<const uint32_t> occurrences = {});
  // Prepares and commits at once.
  void apply_gradients(std::span<const int64_t> ids, const float* gradients,
                       std::optional<int64_t> global_step, std::span<const uint32_t> occurrences = {});
  // Does the same, unless a gradient is NaN or infinite: then nothing changes, and the position of the first
  // such value is returned, among dim floats for each id. `bags`: gradients are dim floats for each bag,
  // which all of its ids share.
  std::optional<size_t> apply_if_finite(std::span<const int64_t> ids, const float* gradients,
                                        std::optional<int64_t> global_step,
                                        const std::optional<Bags>& bags = std::nullopt);

  // Sets the rows of `keys`, which are distinct, or inserts them, whatever a filter says; all or none of
  // them, as an update. `values`: dim weights for each key, and with `with_slots` dim floats for each slot. A
  // new row's frequency is its entry in `frequencies`, which is added to that of an existing row; its version
  // is `version`. No apply is counted.
  void put(std::span<const int64_t> keys, const float* values, bool with_slots,
           std::span<const uint32_t> frequencies, int64_t version);

  // Like apply_gradients(), with ids and gradients in the memory of device(); see lookup_on_device(). Errors
  // occur when the stream gets there: then no row has changed, but the apply is counted, and the next call
  // throws the error. `gradients`: a row for each id. `conditions`: what only the device knows of the batch.
  void apply_on_device(const IdsOnDevice& ids, gpu::DeviceAddress gradients,
                       std::optional<int64_t> global_step, const BatchConditions& conditions = {});
  // A batch of a variable with these partitions, in their order: each table applies its part, or none does.
  struct ApplyOnDevice {
    std::span<Table* const> partitions;
    IdsOnDevice ids;
    gpu::GradientRows gradients;
    BatchConditions conditions;
  };
  // Applies batches of several variables as one step, except those that the host does. A batch that can't be
  // applied stops no other; the first error is thrown after all were tried. REQUIRES: all are on one stream
  // of one device, and no table is there twice.
  static void apply_on_device(std::span<const ApplyOnDevice> batches, std::optional<int64_t> global_step);

  // Counts an apply whose batch is left out: see BatchConditions.
  void leave_out_apply();

  // --- Prefetching of batches that will be trained. Their rows come up to the tier in a GPU's memory in the
  // background, as many as fit, and stay there until the batch's turn is over: when its apply begins, or
  // after 16 more batches. Keys without a row get none, and nothing is counted. All of these throw
  // Error(kInvalidArgument) if no tier is in a GPU's memory. Returns the turn of the next batch, which comes
  // after those prefetched so far.
  uint64_t next_turn();
  // Prefetches the rows of `ids`, which are some or all of the batch of this turn.
  void prefetch(std::span<const int64_t> ids, uint64_t turn);
  // The same with ids in the memory of device(), which the host reads when their stream gets there: once for
  // all partitions of a variable, in their order, each of which has a turn of its own. Waits for nothing.
  void prefetch_on_device(const IdsOnDevice& ids, uint64_t turn);
  static void prefetch_on_device(std::span<Table* const> partitions, const IdsOnDevice& ids,
                                 std::span<const uint64_t> turns);
  // Forgets the batches that were prefetched and won't come.
  void forget_prefetched();

  void lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const;        // -1: no row
  void frequencies(std::span<const int64_t> ids, int64_t* frequencies) const;  // 0: no row
  void versions(std::span<const int64_t> ids, int64_t* versions) const;        // -1: no row

  uint64_t row_count() const;
  // Returns the keys in the range that have a row, ascending.
  std::vector<int64_t> keys_in(KeyRange range) const;
  ExportedRows export_rows(OnDamage on_damage = OnDamage::kRaise) const;
  // Exports the rows of `keys`, which ascend; keys without a row are left out.
  ExportedRows export_rows(std::span<const int64_t> keys, OnDamage on_damage) const;
  TableStats stats() const;

  // Attaches a watcher, watcher_of(level), to the phases of each tier of the storage type, until unwatch() of
  // the same owner.
  void watch(const void* owner, const std::function<std::shared_ptr<PhaseWatcher>(size_t level)>& watcher_of);
  void unwatch(const void* owner);
  // Returns whether any watcher is attached.
  bool is_watched() const { return is_watched_.load(std::memory_order_relaxed); }

  // Returns when every tier is within its capacity and nothing is being moved.
  void drain() const;

  // --- Checkpoints in durable tiers; see keep/table_checkpoint.h. All of these throw Error(kInvalidArgument)
  // if the table was made without. Begins a checkpoint. Returns what identifies it, and the table's state as
  // it is then.
  BegunCheckpoint begin_persist(checkpoint::Writer& file, bool waiting_keys);
  // Brings all rows of the checkpoint to durable tiers, and makes it durable under this id.
  void finish_persist(uint64_t number, const log::CheckpointId& id);
  void drop_persisted(uint64_t number);
  std::vector<log::KeptCheckpoint> persisted() const;
  void restore_persisted(uint64_t number, checkpoint::Partition partition, const checkpoint::Chain& chain,
                         const TableState& state, bool waiting_keys);
  // True if no checkpoint is under way and the tiers above the pool are full.
  bool should_persist() const;
  // True if no checkpoint is under way and a pool above another tier has used half of what it keeps for rows
  // that change between two checkpoints.
  bool is_pool_short() const;
  // True if there are checkpoints of an earlier process that were neither restored nor given up.
  bool awaits_restore() const;
  void await_restore();
  // Gives up the checkpoints of an earlier process.
  void discard_persisted();

  // Returns the keys whose row a medium doesn't give back as it was written, ascending. Reads every row.
  std::vector<int64_t> find_damaged() const;
  // Removes the rows of `keys`, wherever they are. Returns how many there were.
  uint64_t drop(std::span<const int64_t> keys);

  // Removes the rows that `eviction` selects, as they are at one moment between two batches. Returns how many
  // there were. Looks for them while batches go on, as a save does.
  uint64_t evict(const EvictionRule& eviction);

  // Prepares a save: looks for the rows that `eviction` selects while batches go on. begin() evicts them, and
  // the save has the table as it is then. It writes every row, or for an incremental file the rows touched
  // since the last save that succeeded and the keys removed since; with `waiting_keys` also the keys that the
  // filter keeps out. On an error nothing is lost but the evicted rows, which the next save lists. Updates
  // wait only if very many rows change that the save has not written. A save should end soon, since close(),
  // drop() and other saves wait for it.
  std::unique_ptr<TableSave> prepare_save(checkpoint::Writer& file, const EvictionRule& eviction);
  // Prepares, begins and writes.
  SavedTable save(checkpoint::Writer& file, const EvictionRule& eviction, bool waiting_keys,
                  OnDamage on_damage = OnDamage::kRaise);
  // Tells the table that what save `number` wrote is safe: the next incremental save may leave it out. Has no
  // effect if a newer save has begun, which writes all of it again.
  void save_succeeded(uint64_t number);
  // Replaces all rows by those of saves; see keep/checkpoint/restore.h.
  void restore(checkpoint::Partition partition, const checkpoint::Chain& chain, const TableState& state,
               bool waiting_keys);

  // The shape of the filter's sketch; empty if it keeps none.
  SketchShape sketch_shape() const { return parts_.filters.sketch_shape(); }
  // Returns the global step of the next apply that comes without one.
  int64_t apply_count();
  // Raises the apply count to at least this: partitions take over rows of different ages, and count together.
  void advance_apply_count(int64_t at_least);

  // The learning rate of the next apply; until it is set, the one that the optimizer was made with.
  double learning_rate() const;
  void set_learning_rate(double learning_rate);

  // --- Rows that are kept without a pool; see keep/kept_rows.h.
  bool keeps_rows() const { return parts_.store->tiers().keeps_rows(); }
  std::vector<log::CheckpointId> kept_rows() const;
  // Begins with the rows of the kept checkpoint `id`, or with none if that is null. `keep_as`: the id of the
  // checkpoint that this table will make, the same in all partitions of a variable.
  void take_over_kept_rows(const log::CheckpointId* id, const log::CheckpointId& keep_as);
  // Makes the first checkpoint. REQUIRES: the table began with no rows, and has none yet.
  void keep_no_rows(const log::CheckpointId& id);
  // Ends the table as close() does, except that its files stay until close() is called, and older checkpoints
  // of its rows until drop_older_rows(): the other partitions of a variable may not have theirs yet.
  // REQUIRES: take_over_kept_rows() was called.
  void keep_rows();
  void drop_older_rows();

  // Waits for the operations under way, and frees memory and files. If rows are kept (keep_files) and
  // take_over_kept_rows() was called, it first makes a checkpoint of them: throws Error(kStorage) if that
  // fails, and nothing is lost until the table is destroyed. May be called again.
  void close();

 private:
  // Reads rows for a look-up that doesn't serve, in an operation or in a function that a stream calls.
  // `update_follows`: an apply will want the rows of lower tiers again. Returns what to keep for that apply,
  // or null.
  BatchPtr look_up_to_train(std::span<const int64_t> ids, std::span<const uint32_t> occurrences,
                            bool update_follows, const RowsOut& out) const;
  // The same for one that serves. Returns the accesses to count. `last_positions` and `occurrences`: see
  // BatchInFlight. REQUIRES: there is a mover.
  BatchPtr look_up_to_serve(std::span<const int64_t> ids, std::span<const uint32_t> last_positions,
                            std::span<const uint32_t> occurrences, uint64_t first_stamp,
                            const RowsOut& out) const;
  // Returns whether several threads may share a batch: not if a tier is in a GPU's memory, nor if one is
  // watched, since its times have to add up.
  bool may_share() const;
  // The number of ids that were looked up, of those whose row was in the first level, and of those that had a
  // row at all.
  struct LookUpCounts {
    uint64_t ids;
    uint64_t hits;
    uint64_t with_row;
  };
  // Counts the id of each row at `refs` as often as `occurrences` says.
  LookUpCounts look_up_counts(std::span<const RowRef> refs, std::span<const uint32_t> occurrences) const;
  // `lower`: the rows below the first tier, some of which may be in the first level.
  LookUpCounts look_up_counts(uint64_t ids, uint64_t first_tier_hits, const BatchInFlight* lower) const;
  void count(const LookUpCounts& counts) const;
  // --- Steps on the device: table_on_device.cc.
  // These have the host do the batch, and wait for the stream.
  static void look_up_by_host(const LookUpOnDevice& batch, LookUpPurpose purpose);
  static void apply_by_host(const ApplyOnDevice& batch, std::optional<int64_t> global_step);
  // Returns nothing if the host has to do the batch. Throws the error of an earlier step.
  static std::optional<DeviceLookUp::Batch> as_step(const LookUpOnDevice& batch, LookUpPurpose purpose);
  static std::optional<DeviceApply::Batch> as_step(const ApplyOnDevice& batch,
                                                   std::optional<int64_t> global_step);
  std::optional<DeviceLookUp::Share> share_of_look_up(uint32_t ids, LookUpPurpose purpose) const;
  bool make_room_in_log() const;
  DeviceApply::Share share_of_apply(uint32_t ids, std::optional<int64_t> global_step);
  // Called by the host's function of a step.
  void read_missing(const DeviceLookUp::Missing& missing, LookUpPurpose purpose,
                    std::optional<uint64_t> first_stamp, const RowsOut& rows) const;
  class StepUpdate;
  StepClaims make_room_for_step(uint32_t ids);
  // Counts an apply. Its context has the state that begin_update() will give it, unless other updates come
  // before.
  ApplyContext count_apply(std::optional<int64_t> global_step);
  // Begins the update of the rows: gives the context the optimizer's state as it is now, but leaves its
  // learning rate.
  void begin_update(ApplyContext& context);
  ApplyContext begin_apply(std::optional<int64_t> global_step);
  Error store_full_error(uint64_t new_rows) const;
  // Throws the error that a step on the device met, if any.
  void raise_kept_error() const;
  static void raise_kept_errors(std::span<const Table* const> tables);

  // Throws Error(kInvalidArgument) if the table was made without checkpoints.
  log::Checkpoints& checkpoints() const;

  // Mutable, since reading counts, ranks and moves rows, but changes nothing that callers see.
  mutable TableParts parts_;
  mutable std::atomic<uint64_t> hits_{0};
  mutable std::atomic<uint64_t> misses_{0};
  mutable std::atomic<uint64_t> without_row_{0};
  Mutex watch_mutex_;
  std::atomic<bool> is_watched_;

  void end_operations() REQUIRES(close_mutex_);

  Mutex close_mutex_;
  std::optional<log::CheckpointId> keep_as_ GUARDED_BY(close_mutex_);  // none until take_over_kept_rows()
  bool rows_are_kept_ GUARDED_BY(close_mutex_) = false;
};

}  // namespace embstore
