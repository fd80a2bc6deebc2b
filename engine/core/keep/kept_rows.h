// Rows that outlive the process: taken over when a table is made, written out when it is closed.
#pragma once

#include "table_parts.h"

namespace embstore {

// Takes over what an earlier process left in the last tier, if that keeps its rows; what is more than it may hold
// comes up. REQUIRES: the table is being made.
void take_over_kept_rows(TableParts& table);

// Moves every row to the last tier, as many as can be written: throws Error(kStorage) where some can't, which stay
// where they are. REQUIRES: no operation is under way, nor will be, and the mover has stopped.
void write_down_all_rows(TableParts& table);

}  // namespace embstore
