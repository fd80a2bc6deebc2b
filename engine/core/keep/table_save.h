// A save of a table, beside which look-ups, updates and moves go on.
//
// What is saved is the table at one moment between two batches. At that moment, with the apply gate held alone, the save copies
// what a table is beside its rows, and each shard of the index learns of the save. Then the save goes through the shards
// and writes the rows that were there at the moment. Whoever changes a row first keeps its image (store/shard_save.h), so the
// save writes a row from its image or, if it has none, from where it lies.
//
// Rows that are to be evicted are looked for before the moment, beside batches too. At the moment only those that changed
// meanwhile are looked at again.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "keep/save.h"
#include "parts/save_spans.h"
#include "parts/table_parts.h"
#include "parts/table_state.h"
#include "store/shard_save.h"

namespace embstore {

class TableSave {
 public:
  // Waits for the save before, and finds the rows that `eviction` says. `file` outlives this; null where nothing is to be
  // saved.
  TableSave(TableParts& table, checkpoint::Writer* file, const EvictionRule& eviction);
  // A save that was not written is given up: the next one has what this one would have had.
  ~TableSave();
  TableSave(const TableSave&) = delete;
  TableSave& operator=(const TableSave&) = delete;

  // Evicts rows at a moment of their own, and says how many. Once, in place of begin().
  uint64_t evict_alone();
  // The moment: evicts rows, and begins the save of the others. Once.
  void begin(bool waiting_keys);
  // Writes the rows and what else there was at the moment. Once, after begin(). May be called in another thread. Damaged rows
  // are skipped, and told of, or DamagedRowsError.
  SavedTable write(OnDamage on_damage);

 private:
  void find_evicted();
  uint64_t evict() REQUIRES(table_.gate);
  void watch(ShardSave::Keeps keeps) REQUIRES(table_.gate);
  void leave(int number);
  bool is_wanted(const RowHeader& header) const {
    return !file_->incremental() || spans_.unsaved(static_cast<uint16_t>(header.save_span));
  }
  void write_images();

  const SaveTurn turn_;
  TableParts& table_;
  Operation operation_;
  checkpoint::Writer* const file_;
  const EvictionRule eviction_;
  std::vector<int64_t> evicted_;                            // as they were when they were looked at
  std::array<std::unique_ptr<ShardSave>, kShards> shards_;  // null once the shard is written

  // As of the moment.
  SaveSpans spans_;
  SavedTable saved_;
  std::span<const int64_t> removed_keys_;
  WaitingKeys waiting_;
};

}  // namespace embstore
