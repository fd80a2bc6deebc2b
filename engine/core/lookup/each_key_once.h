// Look-ups of batches in which keys occur again, of rows that are dear to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "errors/error.h"
#include "row/unique_ids.h"

namespace embstore {

// Calls read(keys, occurrences, last positions, rows), with each key once, how often it occurs among `ids`, and where in the batch
// it does so last; then gives all of `ids` their rows of `dim` floats, those too of which a DamagedRowsError doesn't speak.
// `positions`: of `ids` in the batch, ascending; none: they are all of it.
template <class Read>
void read_each_key_once(std::span<const int64_t> ids, std::span<const uint32_t> positions, size_t dim,
                        float* out, const Read& read) {
  const UniqueIds unique(ids);
  const std::span<const int64_t> keys = unique.keys;
  const std::span<const uint32_t> occurrences = unique.occurrences;
  std::vector<uint32_t> last_positions(keys.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    last_positions[unique.positions[i]] = positions.empty() ? static_cast<uint32_t>(i) : positions[i];
  }
  if (keys.size() == ids.size())
    return read(keys, occurrences, std::span<const uint32_t>(last_positions), out);
  std::vector<float> rows(keys.size() * dim);
  std::exception_ptr damaged;
  try {
    read(keys, occurrences, std::span<const uint32_t>(last_positions), rows.data());
  } catch (const DamagedRowsError&) {
    damaged = std::current_exception();
  }
  unique.spread(rows.data(), dim, out);
  if (damaged != nullptr) std::rethrow_exception(damaged);
}

}  // namespace embstore
