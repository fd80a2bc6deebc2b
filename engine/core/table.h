// One embedding table: an index, the tiers that hold its rows, and the optimizer that updates them.
//
// Locks, in the order in which they are taken:
// - apply_gate_: shared by every operation that inserts; held alone by export_rows(), which so
//   sees whole batches only, and by an apply to a nearly full table, which must count on the room it sees.
//   The turnstile before it keeps a stream of batches from starving them.
// - the mover's mutex (movement/mover.h): held while rows are moved down, and to hold moves off.
// - a shard's mutex (index/index_shard.h): guards its entries and their rows against other writers. Readers take
//   no lock; they rely on the buckets' sequence locks. At most one shard's mutex is held at a time.
// - a tier's own, innermost; and state_mutex_, which guards the step count and the optimizer's state.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "admission/admission_filter.h"
#include "keep/checkpoint/save_spans.h"
#include "keep/checkpoint/table_state.h"
#include "movement/mover.h"
#include "row/ranking.h"
#include "row/row_layout.h"
#include "store/index/index_reader.h"
#include "store/row_budget.h"
#include "store/tier_stack.h"
#include "threads/epochs.h"
#include "update/gradient_batch.h"
#include "update/optimizers/optimizer.h"

namespace embstore {

namespace checkpoint {
class Writer;
}

struct TableSpec {
  std::string name;
  int dim;
  std::vector<float> default_values;  // rows of dim floats; key k starts as row k mod their number
  std::string optimizer;
  OptimizerParams optimizer_params;
  std::vector<TierSpec> tiers;
  CacheStrategy cache_strategy = CacheStrategy::kLfu;
  FilterSpec filter = NoFilter{};
  float no_permission_value = 0.0f;  // what a key reads that waits for its row
};

struct ExportedRows {
  std::vector<int64_t> keys;  // ascending
  std::vector<float> values;
  std::vector<int64_t> frequencies;
  std::vector<int64_t> versions;
  std::vector<std::vector<float>> slots;
};

struct TableStats {
  struct Level {
    TierStats tier;
    uint64_t rows;           // that the index refers to
    uint64_t capacity_rows;  // TierStack::kUnlimited: no limit
  };
  uint64_t hits;    // ids looked up whose row was in the first tier
  uint64_t misses;  // the others
  uint64_t promotions;
  uint64_t demotions;
  uint64_t waiting_keys;  // that the filter keeps out
  uint64_t index_bytes;
  std::vector<Level> tiers;
};

// Every method may be called from any thread and throws Error(kClosed) after close().
class Table {
 public:
  explicit Table(const TableSpec& spec);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const std::string& name() const { return name_; }
  int dim() const { return layout_.dim(); }
  int slot_count() const { return layout_.slot_count(); }

  // Copies the rows of `ids` to `out`, ids.size() * dim floats; keys without a row read their initial
  // value. A row that is being updated is read as it was before or as it is after, never in between.
  // A serving look-up counts for the ranking and promotes, soon after it returned; one for training does
  // neither.
  void lookup(std::span<const int64_t> ids, float* out, bool train) const;

  // Sums the gradients of equal ids, gives new keys a row if the filter admits them, and updates. `global_step` becomes the rows'
  // version; without one, the count of applies so far. Throws Error(kStoreFull) before anything changes.
  void apply_gradients(std::span<const int64_t> ids, const float* gradients,
                       std::optional<int64_t> global_step);

  void lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const;        // -1: no row
  void frequencies(std::span<const int64_t> ids, int64_t* frequencies) const;  // 0: no row
  void versions(std::span<const int64_t> ids, int64_t* versions) const;        // -1: no row

  uint64_t row_count() const;
  ExportedRows export_rows() const;
  TableStats stats() const;

  // Returns when every tier is within its capacity and nothing is being moved.
  void drain() const;

  // Writes every row, or for an incremental file those that were touched since the last save that
  // succeeded, and the keys removed since; and with `waiting_keys` those that the filter keeps out.
  // Drops what `eviction` says beforehand. Holds applies, promotions and moves off. On an error nothing is
  // lost but the rows that were to be dropped, which the next save tells of.
  SavedTable save(checkpoint::Writer& file, const EvictionRule& eviction, bool waiting_keys);
  // What save() wrote is safe: the next incremental save may leave it out. Saves don't overlap.
  void save_succeeded(uint16_t next_span);

  // Of the filter, where it keeps a sketch.
  SketchShape sketch_shape() const {
    return filters_.front() ? filters_.front()->sketch_shape() : SketchShape{};
  }

  // What an earlier process left in a tier that keeps its rows; nothing where there was none.
  const std::optional<RecoveryReport>& recovery() const { return recovery_; }
  // The step that an apply without one of its own gets next.
  int64_t apply_count();
  // Lets it be no less: partitions take over rows of different ages, and count together.
  void advance_apply_count(int64_t at_least);

  // Waits for the operations under way and gives memory and files back. Where the last tier keeps its rows,
  // it gets those of the others first: throws Error(kStorage) if it can't, and nothing is lost until the
  // table is destroyed. May be called again.
  void close();

 private:
  // Copies what the first tier has, and initial values; adds the rows that lower tiers have to `lower`,
  // and with kNoted writes where each id's row is to `refs`. Returns how many rows the first tier had.
  template <int kDim, bool kNoted>
  uint64_t lookup_rows(std::span<const int64_t> ids, float* out, StagedRows& lower, RowRef* refs) const;
  // Picks the instance for the table's dim.
  template <bool kNoted>
  uint64_t lookup_first_tier(std::span<const int64_t> ids, float* out, StagedRows& lower, RowRef* refs) const;
  // Reads what was added to `lower`.
  void lookup_lower(float* out, StagedRows& lower, RowPart part) const;
  // One row, wherever it is.
  void lookup_row(int64_t key, float* out) const;
  const float* default_row(int64_t key) const;
  // What a key without a row reads.
  void copy_initial_value(KeyHash hash, int64_t key, float* out) const;
  AdmissionFilter* filter_of(KeyHash hash) const {
    return filters_[static_cast<size_t>(shard_of(hash))].get();
  }

  struct KeyFacts {
    uint64_t frequency = 0;
    int64_t version = -1;
  };
  // Calls visit(i, facts) for every id, waiting keys included.
  template <class Visit>
  void visit_facts(std::span<const int64_t> ids, Visit visit) const;

  // Fills `rows` with the rows of `keys`, in order.
  // REQUIRES: all of them exist; the apply gate is held alone and moves are paused, so that rows change
  // places only by a tier's own compaction.
  void read_settled(std::span<const int64_t> keys, RowBatch& rows) const;

  // Applies a batch for which so many rows were reserved, and releases those that it didn't need.
  // REQUIRES: the apply gate is held.
  void apply_batch(const GradientBatch& batch, uint64_t reserved, std::optional<int64_t> global_step);
  // REQUIRES: the apply gate is held alone.
  uint64_t count_new_rows(const GradientBatch& batch) const;
  ApplyContext begin_apply(std::optional<int64_t> global_step);
  struct ApplyScope;
  void apply_keys(IndexShard& shard, std::span<const KeyGradient> keys, const ApplyScope& scope,
                  RowBudget::Reservation& reservation, StagedRows& staged);
  // Returns how many rows it inserted.
  uint64_t apply_locked(IndexShard& shard, std::span<const KeyGradient> keys, const ApplyScope& scope,
                        Mover::Claim* claim, const StagedRows* staged);
  IndexEntry insert_row(IndexShard& shard, const KeyGradient& key, Slot slot, uint64_t earlier_occurrences);

  // --- Saves and restores (table_save.cc, table_replacement.h).
  friend class TableReplacement;
  // REQUIRES, all of them: the apply gate is held alone and moves are paused.
  // The keys of a shard's rows in a tier; `unsaved_only` leaves out those that are known to be saved.
  std::vector<int64_t> rows_of(IndexShard& shard, uint32_t tier, bool unsaved_only) const;
  void save_rows(checkpoint::Writer& file, const EvictionRule& eviction, std::span<const int64_t> keys);
  void save_waiting_keys(checkpoint::Writer& file) const;
  void remove_rows(std::span<const int64_t> keys);

  // --- Rows that outlive the process (table_keep.cc).
  struct RankedKey {
    Rank rank;
    int64_t key;
  };
  // Returns the rows by rank where they may be more than the last tier is to hold.
  // REQUIRES: the table is being made, and has no mover yet.
  std::vector<RankedKey> take_over_rows(CacheStrategy strategy);
  // Brings what the last tier has too much to the upper ones, highest rank first.
  // REQUIRES: the table is being made.
  void bring_up(std::vector<RankedKey> rows);
  void move_up(size_t t, std::span<const RankedKey> rows);
  // Moves every row to the last tier. REQUIRES: no operation is under way, nor will be.
  void write_down();
  void write_down(size_t t, IndexShard& shard);

  std::shared_lock<std::shared_mutex> enter_gate() const;

  // The scope of one operation: keeps what it may look at alive, and holds close() off.
  class Operation {
   public:
    explicit Operation(const Table& table);

   private:
    const Epochs::Guard guard_;
  };

  const std::string name_;
  const std::unique_ptr<const Optimizer> optimizer_;
  const RowLayout layout_;
  const std::vector<float> default_values_;
  const int64_t default_row_count_;
  const std::vector<float> no_permission_row_;
  const FilterSpec filter_spec_;
  // One a shard, changed under the shard's mutex; all null where every key is admitted.
  std::array<std::unique_ptr<AdmissionFilter>, kShards> filters_;

  mutable Epochs epochs_;
  // All reset by close(), in this order.
  std::unique_ptr<Mover> mover_;  // null where there is one tier
  std::unique_ptr<Index> index_;
  std::unique_ptr<TierStack> tiers_;

  RowBudget budget_;
  std::optional<RecoveryReport> recovery_;  // set by the constructor
  mutable AccessClock clock_;

  mutable std::mutex turnstile_;
  mutable std::shared_mutex apply_gate_;

  SaveSpans spans_;                    // guarded by apply_gate_
  std::vector<int64_t> removed_keys_;  // guarded by apply_gate_; since the last save that succeeded

  std::mutex state_mutex_;
  int64_t apply_count_ = 0;         // guarded by state_mutex_
  OptimizerState optimizer_state_;  // guarded by state_mutex_

  mutable std::atomic<uint64_t> hits_{0};
  mutable std::atomic<uint64_t> misses_{0};

  std::mutex close_mutex_;
  std::atomic<bool> closed_{false};
};

}  // namespace embstore
