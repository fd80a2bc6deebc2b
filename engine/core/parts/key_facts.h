// How often keys were trained, and when last: of their rows, wherever those lie, or of the filter at which they wait.
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

// Of each id, in order. Throws DamagedRowsError where a row can't be read. REQUIRES: an Operation of the caller's.
std::vector<KeyFacts> facts_of(TableParts& table, std::span<const int64_t> ids);

}  // namespace embstore
