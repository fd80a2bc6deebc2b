// A save of a table, beside which look-ups, updates and moves go on.
//
// It saves the table as it is at one moment between two batches. At that moment, with the apply gate held
// alone, the save copies the table's state besides its rows, and tells each shard of the index of the save.
// Then it goes through the shards and writes the rows that were there at the moment. A thread that is about
// to change a row first keeps its image (store/shard_save.h), so the save writes a row from its image or, if
// it has none, from where it lies.
//
// The save looks for rows to evict before the moment, while batches go on. At the moment it looks again only
// at those that changed meanwhile.
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
  // Waits for the save before, and finds the rows that `eviction` selects. `file` outlives this; null if
  // nothing is to be saved.
  TableSave(TableParts& table, checkpoint::Writer* file, const EvictionRule& eviction);
  // A save that was not written is given up: the next one writes what this one would have written.
  ~TableSave();
  TableSave(const TableSave&) = delete;
  TableSave& operator=(const TableSave&) = delete;

  // Evicts rows at a moment of their own, and returns how many. Called at most once, in place of begin().
  uint64_t evict_alone();
  // The moment: evicts rows, and begins the save of the remaining ones. Called at most once.
  void begin(bool waiting_keys);
  // Writes the rows and the other state as of the moment. Called at most once, after begin(), in any thread.
  // Damaged rows are skipped and listed in the result, or DamagedRowsError is thrown.
  SavedTable write(OnDamage on_damage);

 private:
  void find_evicted();
  uint64_t evict() REQUIRES(table_.gate);
  void start_shards(ShardSave::Keeps keeps) REQUIRES(table_.gate);
  void end_shard(int number);
  bool should_save(const RowHeader& header) const {
    return !file_->incremental() || spans_.is_unsaved(static_cast<uint16_t>(header.save_span));
  }
  void write_images();

  const SaveTurn turn_;
  TableParts& table_;
  Operation operation_;
  checkpoint::Writer* const file_;
  const EvictionRule eviction_;
  std::vector<int64_t> evicted_;                            // keys, chosen before the moment
  std::array<std::unique_ptr<ShardSave>, kShards> shards_;  // null once the shard is written

  // State as of the moment.
  SaveSpans spans_;
  SavedTable saved_;
  std::span<const int64_t> removed_keys_;
  WaitingKeys waiting_;
};

}  // namespace embstore
