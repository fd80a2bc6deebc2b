// Reading back the rows of a checkpoint, by several threads.
#pragma once

#include "tiers/checkpoint_follower.h"
#include "tiers/ssd_hash/log_shape.h"
#include "tiers/ssd_hash/snapshot.h"

namespace embstore::ssd_hash {

// Calls visit(headers, slots) for the rows of `snapshot`, from at most so many threads, each row once. Throws
// Error(kStorage), naming the file and the record, where one isn't what was written, or what visit throws.
void visit_rows(const Snapshot& snapshot, const LogShape& shape, int threads,
                const CheckpointFollower::Restored& visit);

}  // namespace embstore::ssd_hash
