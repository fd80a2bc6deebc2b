// Look-ups of batches in which keys occur again, of rows that are dear to read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "lookup/look_up.h"
#include "row/key_hash.h"
#include "row/unique_ids.h"
#include "threads/mutex.h"
#include "threads/shared_work.h"

namespace embstore {

// Some ids of a batch, or all, in its order.
struct IdsOfBatch {
  std::span<const int64_t> ids;
  std::span<const uint32_t> positions;  // of these in the batch, ascending; none: they are all of it
  std::span<const uint32_t> places;     // of their rows, ascending; none: they lie in the order of the ids
};

// Calls read(keys, occurrences, last positions, rows), with each key once, how often it occurs among the ids, where in the batch
// it does so last, and where its row goes; then gives all of the ids their rows of `dim` floats, those too of which a
// DamagedRowsError doesn't speak.
template <class Read>
void read_each_key_once(const IdsOfBatch& batch, size_t dim, float* out, const Read& read) {
  const std::span<const int64_t> ids = batch.ids;
  const UniqueIds unique(ids);
  std::vector<uint32_t> last_positions(unique.keys.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    last_positions[unique.positions[i]] =
        batch.positions.empty() ? static_cast<uint32_t>(i) : batch.positions[i];
  }
  const auto read_to = [&](const RowsOut& rows) {
    read(std::span<const int64_t>(unique.keys), std::span<const uint32_t>(unique.occurrences),
         std::span<const uint32_t>(last_positions), rows);
  };
  const bool is_each_once = unique.keys.size() == ids.size();
  if (is_each_once) return read_to({out, batch.places});
  const auto place = [&](size_t i) { return batch.places.empty() ? i : batch.places[i]; };
  std::vector<uint32_t> places;  // of the keys: their first ones
  places.reserve(unique.keys.size());
  for (const uint32_t first : unique.firsts) places.push_back(static_cast<uint32_t>(place(first)));
  std::exception_ptr damaged;
  try {
    read_to({out, places});
  } catch (const DamagedRowsError&) {
    damaged = std::current_exception();
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t first = places[unique.positions[i]];
    if (place(i) != first) std::copy_n(out + first * dim, dim, out + place(i) * dim);
  }
  if (damaged != nullptr) std::rethrow_exception(damaged);
}

// The same with several threads, where it is worth their while: each calls `read` for its share of the keys, at the same time.
// `positions` as of IdsOfBatch. Of several errors it throws the first; a DamagedRowsError speaks of all rows.
template <class Read>
void read_each_key_once_together(std::span<const int64_t> ids, std::span<const uint32_t> positions,
                                 size_t dim, float* out, const Read& read) {
  constexpr size_t kIdsAThread = 2048;
  const size_t threads = std::min(HelpingThreads::most_threads(), ids.size() / kIdsAThread);
  if (threads < 2) return read_each_key_once({ids, positions, {}}, dim, out, read);
  Mutex mutex;
  std::vector<int64_t> damaged;
  std::optional<std::string> reason;
  share_work(threads, threads, [&](const auto& next) {
    for (size_t share = next(); share != threads; share = next()) {
      // Each thread looks at all ids for its own: to share them out first would take as long as that.
      std::vector<int64_t> own_ids;
      std::vector<uint32_t> own_positions;
      std::vector<uint32_t> places;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (((hash_key(ids[i]) >> 32) * threads) >> 32 != share) continue;
        own_ids.push_back(ids[i]);
        if (!positions.empty()) own_positions.push_back(positions[i]);
        places.push_back(static_cast<uint32_t>(i));
      }
      try {
        read_each_key_once({own_ids, positions.empty() ? places : own_positions, places}, dim, out, read);
      } catch (const DamagedRowsError& error) {
        const MutexLock lock(mutex);
        damaged.insert(damaged.end(), error.keys().begin(), error.keys().end());
        if (!reason) reason = error.first_reason();
      }
    }
  });
  if (reason) throw DamagedRowsError(std::move(damaged), *reason);
}

}  // namespace embstore
