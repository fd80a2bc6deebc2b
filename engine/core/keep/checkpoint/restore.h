// Verifies row files of a checkpoint, and fills tables from them.
//
// A table is restored from a chain: one list of files (one file per partition of the variable that was
// saved) for each save, the newest incremental one first and the full one last. Each key's row is that of
// the newest save that has one, and each is inserted once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "keep/checkpoint/reader.h"
#include "parts/table_parts.h"
#include "parts/table_state.h"

namespace embstore {
class Replacement;
}

namespace embstore::checkpoint {

using Chain = std::vector<std::vector<std::string>>;

// A range of keys, empty at first: the least is more than the greatest.
struct KeyRange {
  int64_t least = INT64_MAX;
  int64_t greatest = INT64_MIN;

  void add(const KeyRange& other) {
    least = std::min(least, other.least);
    greatest = std::max(greatest, other.greatest);
  }
};

struct VerifiedFile {
  FileHeader header;
  FileSummary summary;
  std::vector<uint64_t> rows;              // the number of rows in each of `partition_count` partitions
  KeyRange keys;                           // the range of keys that have a row
  std::vector<SketchShape> sketch_shapes;  // each once
};
// Reads the whole file. Throws as Reader does, and if the file has keys of another partition than its own.
VerifiedFile verify_file(const std::string& path, size_t partition_count);

// Returns how many rows restore_table() would give each of `partition_count` partitions. Keeps the keys of
// the incremental saves in memory.
std::vector<uint64_t> count_rows(const Chain& chain, size_t partition_count);

// One of the equal parts over which a variable's keys are spread.
struct Partition {
  size_t number = 0;
  size_t count = 1;
};

// Inserts what a chain has of that partition into a table, beside what the table holds.
void restore_files(Replacement& table, Partition partition, const Chain& chain, bool waiting_keys);

// Replaces what a table holds, which is that partition of a variable. REQUIRES: every file was verified and
// is in its place in the chain. On an error, which can only be the medium's, the table is left empty; an
// empty chain also leaves it empty. Without `waiting_keys` those of the chain are left out.
void restore_table(TableParts& table, Partition partition, const Chain& chain, const TableState& state,
                   bool waiting_keys);

}  // namespace embstore::checkpoint
