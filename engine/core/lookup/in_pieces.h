// Shares the reading of a large batch among several threads.
#pragma once

#include <algorithm>
#include <cstddef>

#include "lookup/damage_collector.h"
#include "threads/shared_work.h"

namespace embstore {

// Calls read(first, count) for pieces of neighbouring ids of a batch, by several threads at the same time if
// the batch is large enough for pieces of at least `min_ids`. If several pieces fail, it throws the first
// error; a DamagedRowsError names the rows of all pieces.
template <class Read>
void read_in_pieces(size_t ids, size_t min_ids, const Read& read) {
  constexpr size_t kPiecesAThread = 4;  // so that all threads end at about the same time
  const size_t threads = HelpingThreads::max_threads();
  const size_t pieces = std::min(ids / min_ids, threads * kPiecesAThread);
  if (threads == 1 || pieces < kPiecesAThread) return read(size_t{0}, ids);
  DamageCollector damaged;
  for_each_piece(pieces, threads, [&](size_t piece) {
    const size_t first = piece * ids / pieces;
    const size_t end = (piece + 1) * ids / pieces;
    damaged.collect([&] { read(first, end - first); });
  });
  damaged.throw_if_any();
}

}  // namespace embstore
