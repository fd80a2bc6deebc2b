// One embedding table: an index, the tier that holds its rows, and the optimizer that updates them.
//
// Locks, in the order in which they are taken:
// - apply_gate_: shared by every apply, held alone by export_rows(), which so sees whole batches only. The
//   turnstile before it keeps a stream of applies from starving an export.
// - a shard's mutex (index/index.h): guards its entries and their rows against other writers. Readers take
//   no lock; they rely on the buckets' sequence locks. At most one shard's mutex is held at a time.
// - state_mutex_: guards the step count and the optimizer's state; taken alone, for a moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "gradient_batch.h"
#include "index/epochs.h"
#include "index/index.h"
#include "memory_tier.h"
#include "optimizers/optimizer.h"
#include "row_layout.h"

namespace embstore {

struct TierSpec {
  std::string kind;                 // "DRAM", "PMEM_LIBPMEM" or "PMEM_MEMKIND"
  std::optional<std::string> path;  // the file of a PMEM_LIBPMEM tier
  uint64_t size_bytes;
};

struct TableSpec {
  std::string name;
  int dim;
  std::vector<float> default_values;  // rows of dim floats; key k starts as row k mod their number
  std::string optimizer;
  OptimizerParams optimizer_params;
  std::vector<TierSpec> tiers;
};

struct ExportedRows {
  std::vector<int64_t> keys;  // ascending
  std::vector<float> values;
  std::vector<int64_t> frequencies;
  std::vector<int64_t> versions;
  std::vector<std::vector<float>> slots;
};

struct TableStats {
  uint64_t hits;    // ids looked up that had a row
  uint64_t misses;  // ids looked up that had none
  uint64_t index_bytes;
  std::vector<TierStats> tiers;
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
  void lookup(std::span<const int64_t> ids, float* out) const;

  // Sums the gradients of equal ids, gives new keys a row, and updates. `global_step` becomes the rows'
  // version; without one, the count of applies so far. Throws Error(kStoreFull) before anything changes.
  void apply_gradients(std::span<const int64_t> ids, const float* gradients,
                       std::optional<int64_t> global_step);

  void lookup_tier(std::span<const int64_t> ids, int32_t* tiers) const;      // -1: no row
  void frequencies(std::span<const int64_t> ids, int64_t* frequencies) const;  // 0: no row
  void versions(std::span<const int64_t> ids, int64_t* versions) const;      // -1: no row

  uint64_t row_count() const;
  ExportedRows export_rows() const;
  TableStats stats() const;

  // Waits for the operations under way and gives the memory back. May be called again.
  void close();

 private:
  template <int kDim>
  uint64_t lookup_rows(std::span<const int64_t> ids, float* out) const;
  const float* default_row(int64_t key) const;

  // Calls visit(i, meta) for every id, with null where there is no row.
  template <class Visit>
  void visit_meta(std::span<const int64_t> ids, Visit visit) const;

  // Reserves a slot for every key of the batch that may need one; returns how many.
  uint64_t reserve_rows(const GradientBatch& batch);
  ApplyContext begin_apply(std::optional<int64_t> global_step);
  // Returns how many reserved slots it used. REQUIRES: the shard's mutex is held.
  uint64_t apply_to_shard(IndexShard& shard, std::span<const KeyGradient> keys,
                          const ApplyContext& context);
  Entry insert_row(IndexShard& shard, const KeyGradient& key, Slot slot);

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

  mutable Epochs epochs_;
  std::unique_ptr<MemoryTier> tier_;  // both reset by close()
  std::unique_ptr<Index> index_;

  mutable std::mutex turnstile_;
  mutable std::shared_mutex apply_gate_;

  std::mutex state_mutex_;
  int64_t apply_count_ = 0;          // guarded by state_mutex_
  OptimizerState optimizer_state_;   // guarded by state_mutex_

  mutable std::atomic<uint64_t> hits_{0};
  mutable std::atomic<uint64_t> misses_{0};

  std::mutex close_mutex_;
  std::atomic<bool> closed_{false};
};

}  // namespace embstore
