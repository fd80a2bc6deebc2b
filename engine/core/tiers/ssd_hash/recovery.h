// Rows read back from the files that an earlier process left.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "tiers/recovery_report.h"
#include "tiers/ssd_hash/log_file.h"
#include "tiers/ssd_hash/log_shape.h"
#include "tiers/ssd_hash/tier_directory.h"
#include "tiers/tier.h"

namespace embstore::ssd_hash {

struct RecoveredLog {
  std::deque<std::shared_ptr<LogFile>> files;  // the oldest first; the newest row of every key is live
  uint64_t last_sequence = 0;
  RecoveryReport report;
};

// Throws Error(kStorage) if a file can't be read.
RecoveredLog read_back(std::span<const OldFile> old_files, const LogShape& shape);

// Tells `found` of the live rows, in batches.
void tell_rows(const RecoveredLog& log, const LogShape& shape, const Tier::Found& found);

// Seals those that a killed process was writing, and maps them all.
void finish_files(const RecoveredLog& log, const LogShape& shape);

}  // namespace embstore::ssd_hash
