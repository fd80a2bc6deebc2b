// The first pages of a pool's files, made and checked.
#pragma once

#include <cstdint>

#include "tiers/pool/durable_file.h"
#include "tiers/pool/format.h"
#include "tiers/pool/pool_files.h"

namespace embstore::pool {

void write_rows_header(DurableFile& file, const Uuid& uuid);
// Throws Error(kInvalidArgument) where a name is too long.
void write_checkpoints_header(DurableFile& file, const Uuid& uuid, const PoolSpecification& wanted,
                              uint64_t slots);

// Throws Error(kStorage) where the file is damaged, cut off, or of another format, and Error(kInvalidArgument) where it's
// another table's. Each names it.
CheckpointsHeader checked_checkpoints_header(const DurableFile& file, const PoolSpecification& wanted);
void check_rows_header(const DurableFile& file, const CheckpointsHeader& beside, const RecordShape& shape);

// True of a file that begins as NAME.pool does.
bool has_rows_magic(const DurableFile& file);

}  // namespace embstore::pool
