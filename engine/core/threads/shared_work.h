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

// Calls work(next) on at most `threads` threads, including the caller. next() returns the number of the
// thread's next piece, or `pieces` if none is left or a thread failed. When all have ended, rethrows the
// first exception that `work` threw; throws nothing of its own. HelpingThreads::call_together() says what
// `work` may wait for.
template <class Work>
void share_work(size_t pieces, size_t threads, const Work& work) {
  std::atomic<size_t> next_piece{0};
  std::atomic<bool> failed{false};
  Mutex mutex;
  std::exception_ptr error;  // the first exception
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

// Calls work(piece) for each piece, with the rules of share_work(). For work in which a thread keeps nothing
// from one piece to the next.
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
