// What a tier found that an earlier process had left for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace embstore {

struct RecoveryReport {
  bool earlier_run = false;  // an earlier process kept its rows here, if only none
  uint64_t files = 0;
  uint64_t rows = 0;        // keys that were found
  uint64_t superseded = 0;  // whole records of rows of which a newer one or a tombstone was found
  uint64_t torn = 0;        // records at the end of a file that was being written, skipped
  uint64_t damaged = 0;     // records elsewhere whose checksum is wrong, or that are cut off, skipped
  // Records that were made and never written out whole: of rows, each of several of one key counted, and
  // of tombstones, but not copies by compaction. Exact after a killed process; after a power cut a hint.
  // Nothing where no note of it lies beside the files. Rows that lay in the tiers above alone don't count.
  std::optional<uint64_t> unwritten;
  std::string first_damage;  // file and place of the first such; empty where there is none
};

}  // namespace embstore
