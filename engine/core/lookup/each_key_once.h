// Look-ups of batches in which keys occur again, of rows that are dear to read.
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

// Some ids of a batch, or all, in its order.
struct IdsOfBatch {
  std::span<const int64_t> ids;
  std::span<const uint32_t> positions;  // of these in the batch, ascending; none: they lie side by side
  size_t begin = 0;                     // then: the position of the first

  uint32_t position(size_t i) const {
    return positions.empty() ? static_cast<uint32_t>(begin + i) : positions[i];
  }
  // Neighbours.
  IdsOfBatch part(size_t first, size_t count) const {
    return {ids.subspan(first, count), positions.empty() ? positions : positions.subspan(first, count),
            begin + first};
  }
};

// Calls read(keys, occurrences, last positions, rows), with each key once, how often it occurs among the ids, where in the batch
// it does so last, and where its row goes; then gives all of the ids their rows of `dim` floats, in their order, those too of which a
// DamagedRowsError doesn't speak. REQUIRES: `out` has no places.
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
