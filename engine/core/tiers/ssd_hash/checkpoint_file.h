// What a tier has of one checkpoint, on the medium: which records of which files hold its rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiers/checkpoint_follower.h"
#include "tiers/ssd_hash/log.h"
#include "tiers/ssd_hash/log_shape.h"
#include "tiers/ssd_hash/record_bits.h"
#include "tiers/ssd_hash/snapshot.h"

namespace embstore::ssd_hash {

struct CheckpointContents {
  struct File {
    uint64_t number;
    uint32_t capacity;
    uint32_t records;
    RecordBits rows;
  };
  std::vector<File> files;
  uint64_t rows;
  Log::NextNumbers next;
};

// Throws Error(kInvalidArgument) where the name is too long to be noted.
void check_optimizer_name(const std::string& optimizer);

// Under its own name, which the directory need not have on its medium yet, only when all of it is on the medium. REQUIRES:
// so are the rows. Throws Error(kStorage); then there's no such file, or an older one of this number.
void write_checkpoint_file(const LogShape& shape, const std::string& optimizer, const CheckpointName& name,
                           const Snapshot& snapshot, const Log::NextNumbers& next);

// Throws Error(kStorage), which names the file and says what to do, where it isn't there, isn't what was written, or is
// of another checkpoint, variable, layout or optimizer.
CheckpointContents read_checkpoint_file(const LogShape& shape, const std::string& optimizer,
                                        const CheckpointName& name);

}  // namespace embstore::ssd_hash
