// Look-ups of batches in which keys occur repeatedly, for rows that are expensive to read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "errors/error.h"
#include "lookup/look_up.h"
#include "row/unique_ids.h"

namespace embstore {

// Some or all ids of a batch, in its order.
struct IdsOfBatch {
  std::span<const int64_t> ids;
  std::span<const uint32_t> positions;  // of these ids in the batch, ascending; empty: they are neighbours
  size_t begin = 0;                     // the position of the first, if they are neighbours

  uint32_t position(size_t i) const {
    return positions.empty() ? static_cast<uint32_t>(begin + i) : positions[i];
  }
  // Returns `count` neighbouring ids.
  IdsOfBatch part(size_t first, size_t count) const {
    return {ids.subspan(first, count), positions.empty() ? positions : positions.subspan(first, count),
            begin + first};
  }
};

// Calls read(keys, occurrences, last positions, rows) with each key once, how often it occurs among the ids,
// its last position in the batch, and where its row goes. Then gives every id its row of `dim` floats, in the
// order of the ids. After a DamagedRowsError the rows that it doesn't name are given, too. REQUIRES: `out`
// has no places.
template <class Read>
void read_each_key_once(const IdsOfBatch& batch, size_t dim, const RowsOut& out, const Read& read) {
  const UniqueIds unique(batch.ids);
  std::vector<uint32_t> last_positions(unique.keys.size());
  for (size_t i = 0; i < batch.ids.size(); ++i) last_positions[unique.positions[i]] = batch.position(i);
  const auto read_to = [&](const RowsOut& rows) {
    read(std::span<const int64_t>(unique.keys), std::span<const uint32_t>(unique.occurrences),
         std::span<const uint32_t>(last_positions), rows);
  };
  const bool is_each_once = unique.keys.size() == batch.ids.size();
  if (is_each_once) return read_to(out);
  std::exception_ptr damaged;
  try {
    read_to({out.rows, unique.firsts, out.left_at});
  } catch (const DamagedRowsError&) {
    damaged = std::current_exception();
  }
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    const uint32_t first = unique.firsts[unique.positions[i]];
    if (i == first) continue;
    if (out.left_at != nullptr && out.left_at[first]) {
      out.left_at[i] = out.left_at[first];
    } else {
      std::copy_n(out.rows + first * dim, dim, out.rows + i * dim);
    }
  }
  if (damaged != nullptr) std::rethrow_exception(damaged);
}

}  // namespace embstore
