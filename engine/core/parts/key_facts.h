// The frequency and version of keys: from their rows, in any tier, or from the filter at which they wait for
// one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parts/table_parts.h"
#include "row/row_meta.h"

namespace embstore {

struct KeyFacts {
  uint64_t frequency = 0;
  int64_t version = RowMeta::kNeverUpdated;
};

// Returns the facts of each id, in order. Throws DamagedRowsError if a row can't be read. REQUIRES: the
// caller holds an Operation.
std::vector<KeyFacts> facts_of(TableParts& table, std::span<const int64_t> ids);

}  // namespace embstore
