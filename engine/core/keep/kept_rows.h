// Rows that outlive the process without a pool (keep_files): closing the table makes a checkpoint of them,
// with which the next process begins.
//
// The partitions of a variable make their checkpoints one after the other, under one id. An older checkpoint
// is dropped only when all partitions have the newer one. So the newest id that all of them have is that of a
// whole variable.
#pragma once

#include <vector>

#include "parts/table_parts.h"

namespace embstore {

// Returns the ids of the checkpoints that an earlier process left, oldest first.
std::vector<log::CheckpointId> kept_rows(const TableParts& table);

// Begins with the rows of one of these checkpoints, and drops the others; null: begins with none. Rows beyond
// the last tier's capacity come up. REQUIRES: nothing was looked up in the table.
void take_over_kept_rows(TableParts& table, const log::CheckpointId* id);

// Moves every row to the last tier, and makes a checkpoint of them. Throws Error(kStorage) if that fails: no
// row is lost then. REQUIRES: no operation is under way, nor will be, and the mover has stopped.
void keep_rows(TableParts& table, const log::CheckpointId& id);
// Makes a checkpoint of the rows that lie in the last tier. REQUIRES: none changes meanwhile.
void make_kept_checkpoint(TableParts& table, const log::CheckpointId& id);
// Drops all checkpoints but the newest.
void drop_older_rows(TableParts& table);

}  // namespace embstore
