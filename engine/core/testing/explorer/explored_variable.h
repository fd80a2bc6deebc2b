// A small variable that a schedule explores, with the history of what threads did to it and saw of it. This
// code judges the history.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/emulated/draws.h"
#include "table.h"
#include "testing/explorer/explored_device.h"
#include "testing/explorer/history.h"
#include "testing/explorer/prefetched_ids.h"
#include "testing/variable.h"

namespace embstore::explorer {

inline constexpr int kDim = 3;
inline constexpr int64_t kKeys = 12;
inline constexpr size_t kMaxIds = 8;

struct ExploredVariable {
  // Makes a variable of one or two partitions, whose files' paths begin with `path`.
  ExploredVariable(gpu::emulated::Draws& draws, ExploredDevice& device, const std::string& path);

  static std::vector<int64_t> all_keys() { return keys_from(0, kKeys); }
  static std::vector<int64_t> some_ids(gpu::emulated::Draws& draws);
  bool has_pool() const { return specs.front().tiers.back().kind == "PMEM_POOL"; }
  size_t partitions() const { return specs.size(); }

  // Trains a few batches before the threads begin.
  void train_first(gpu::emulated::Draws& draws);

  size_t begin_apply(const std::vector<int64_t>& ids, int64_t step);
  // Begins a read for each occurrence of a key, since two occurrences may be read before and after an update.
  std::vector<size_t> begin_reads(const std::vector<int64_t>& ids, const std::string& name);
  void saw_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids, const float* rows);
  void end_reads(const std::vector<size_t>& numbers, const std::vector<int64_t>& ids, const float* rows);
  // Notes all rows that the operation saw: exported ones, or those in a file.
  void saw_rows(size_t number, const ExportedRows& rows);
  void saw_rows(size_t number, const std::string& path);
  void note_asked(const std::vector<int64_t>& ids, const Variable::Turns& turns);

  // Checks the table when all threads have ended.
  void look_at_the_end(gpu::Stream stream);
  // Checks the checkpoints after the table's end, in a process without a GPU.
  void look_at_checkpoints();

  // A complete save, with one path and state for each partition.
  struct Saved {
    std::vector<std::string> paths;
    std::map<int64_t, RowState> rows;  // of all partitions
    std::vector<TableState> states;
  };
  struct Persisted {
    size_t moment;  // its number in the history
    std::vector<uint64_t> numbers;
    std::vector<std::string> paths;
    std::vector<TableState> states;
  };

  ExploredDevice& device;
  std::vector<TableSpec> specs;  // one for each partition
  std::unique_ptr<Variable> table;
  History history;
  int64_t next_step = 1;
  Mutex checkpoints;         // held during a save or a restore
  std::vector<Saved> saved;  // complete saves
  bool is_persisting = false;
  std::vector<Persisted> persisted;  // oldest first
  uint64_t looked_up = 0;
  PrefetchedIds asked_for;

 private:
  int64_t updates_of(int64_t key, const float* row) const;
  void saw_row(size_t number, int64_t key, int64_t frequency, int64_t version, const float* floats);
};

}  // namespace embstore::explorer
