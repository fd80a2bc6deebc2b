// Which records held the rows at one moment.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/ssd_hash/log_file.h"
#include "tiers/ssd_hash/record_bits.h"

namespace embstore::ssd_hash {

struct FileSnapshot {
  std::shared_ptr<LogFile> file;
  uint32_t records;  // appended then; whatever is appended later begins in another block than the rows end in
  std::shared_ptr<const RecordBits> rows;
};

struct Snapshot {
  std::vector<FileSnapshot> files;  // those with rows
  uint64_t rows = 0;
};

}  // namespace embstore::ssd_hash
