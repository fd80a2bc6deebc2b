// Rows that outlive the process without a pool (keep_files): a checkpoint that closing the table makes, and that the next process
// begins with.
//
// The partitions of a variable make theirs one after the other, under one id: an older checkpoint goes only when all have the
// newer. So the newest id that all of them have is that of a variable that was whole.
#pragma once

#include <vector>

#include "parts/table_parts.h"

namespace embstore {

// The checkpoints that an earlier process left, ascending.
std::vector<log::CheckpointId> kept_rows(const TableParts& table);

// Begins with one of them, and drops the others; null: with none. Rows that are too many for the last tier come up.
// REQUIRES: nothing was looked up in the table.
void take_over_kept_rows(TableParts& table, const log::CheckpointId* id);

// Moves every row to the last tier, and makes a checkpoint of them. Throws Error(kStorage) where that fails: no row is lost then.
// REQUIRES: no operation is under way, nor will be, and the mover has stopped.
void keep_rows(TableParts& table, const log::CheckpointId& id);
// A checkpoint of the rows that lie in the last tier. REQUIRES: none changes meanwhile.
void make_kept_checkpoint(TableParts& table, const log::CheckpointId& id);
// The newest checkpoint alone is kept.
void drop_older_rows(TableParts& table);

}  // namespace embstore
