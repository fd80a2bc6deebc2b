// Work in numbered pieces that the caller and helping threads share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <utility>

#include "threads/helping_threads.h"
#include "threads/mutex.h"

namespace embstore {

// Calls work(next) on at most so many threads, of which the caller is one: next() is the number of the thread's next piece, or
// `pieces` where none is left or one of the threads failed. Rethrows what the first that failed threw, when all have ended; throws
// nothing of its own.
// See HelpingThreads::call_together() for what `work` may wait for.
template <class Work>
void share_work(size_t pieces, size_t threads, const Work& work) {
  std::atomic<size_t> next_piece{0};
  std::atomic<bool> failed{false};
  Mutex mutex;
  std::exception_ptr error;  // of the first
  const auto next = [&] {
    if (failed.load(std::memory_order_relaxed)) return pieces;
    const size_t piece = next_piece.fetch_add(1, std::memory_order_relaxed);
    return std::min(piece, pieces);
  };
  const auto run = [&] {
    try {
      work(next);
    } catch (...) {
      const MutexLock lock(mutex);
      if (error == nullptr) error = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  };
  HelpingThreads::instance().call_together(std::max<size_t>(std::min(pieces, threads), 1) - 1, std::ref(run));
  if (error != nullptr) std::rethrow_exception(error);
}

// Calls work(piece) for each, as share_work() does, where a thread has nothing to keep from one piece to its next.
template <class Work>
void for_each_piece(size_t pieces, size_t threads, const Work& work) {
  if (std::min(pieces, threads) <= 1) {
    for (size_t piece = 0; piece < pieces; ++piece) work(piece);
    return;
  }
  share_work(pieces, threads, [&](const auto& next) {
    for (size_t piece = next(); piece != pieces; piece = next()) work(piece);
  });
}

}  // namespace embstore
