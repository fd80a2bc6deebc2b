// Row files of a checkpoint: their verification, and tables filled from them.
//
// A chain is what a table is restored from: one list of files (one a partition of the variable that was
// saved) for each save, the newest incremental one first and the full one last. Each key's row is that of
// the newest save that has one, and each is put in once.
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

// Of no key to begin with: the least is more than the greatest.
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
  std::vector<uint64_t> rows;              // by partition of `partition_count`
  KeyRange keys;                           // that have a row
  std::vector<SketchShape> sketch_shapes;  // each once
};
// Reads the whole file. Throws as Reader does, and where it has keys of another partition than its own.
VerifiedFile verify_file(const std::string& path, size_t partition_count);

// The rows that restore_table() would give each of so many partitions. Remembers the keys of the incremental
// saves.
std::vector<uint64_t> count_rows(const Chain& chain, size_t partition_count);

// One of the equal parts that a variable's keys are spread over.
struct Partition {
  size_t number = 0;
  size_t count = 1;
};

// Puts what a chain has of that partition into a table, beside what it holds.
void restore_files(Replacement& table, Partition partition, const Chain& chain, bool waiting_keys);

// Replaces what a table holds, which is that partition of a variable. REQUIRES: every file was verified and
// belongs where it is. On an error, which can only be the medium's, the table is left empty; so it is after
// an empty chain. Without `waiting_keys` those of the chain are left out.
void restore_table(TableParts& table, Partition partition, const Chain& chain, const TableState& state,
                   bool waiting_keys);

}  // namespace embstore::checkpoint
