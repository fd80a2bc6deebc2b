// Checkpoints of a table in its durable tiers. They begin between two batches, while nothing is updated, are
// written in the background, and are committed when every row that belongs to them is in a durable tier.
#pragma once

#include <cstdint>

#include "keep/checkpoint/restore.h"
#include "keep/checkpoint/writer.h"
#include "parts/table_parts.h"
#include "parts/table_state.h"

namespace embstore {

struct BegunCheckpoint {
  uint64_t number = 0;
  uint64_t rows = 0;  // of the table at that moment
  TableState state;
};

// Begins the next checkpoint: every row as it is now belongs to it. Other state goes to `file`: replaced
// initial rows, and waiting keys if `waiting_keys`. Throws Error(kStorage) if the table awaits a restore, has
// the maximum number of checkpoints, or the file can't be written; nothing was begun then.
BegunCheckpoint begin_checkpoint(TableParts& table, checkpoint::Writer& file, bool waiting_keys);

// Makes a checkpoint durable: the changed rows that it wants are written to the pool, while look-ups and
// updates go on. Throws Error(kStorage); the checkpoint is still pending then.
void commit_checkpoint(TableParts& table, Operation& operation, uint64_t number, const log::CheckpointId& id);

// Gives up a checkpoint that was begun, or drops a durable one.
void drop_checkpoint(TableParts& table, uint64_t number);

// Drops all checkpoints, also those of earlier processes. REQUIRES: a standstill, and no row is live.
void give_up_checkpoints(TableParts& table);

// Replaces what a table holds, which is that partition of a variable, by checkpoint `number` of its durable
// tiers. The chain has the files of what isn't a row. REQUIRES: the files were verified. On an error the
// table awaits its restore. Newer checkpoints stay, since other partitions may still want theirs.
void restore_checkpoint(TableParts& table, uint64_t number, checkpoint::Partition partition,
                        const checkpoint::Chain& chain, const TableState& state, bool waiting_keys);

// Leaves the table empty, and its checkpoints as they are. The table takes no rows and makes no checkpoint
// until one is restored, or all are given up.
void await_restore(TableParts& table);

}  // namespace embstore
