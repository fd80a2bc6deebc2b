// Work in numbered pieces that several threads share.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "threads/mutex.h"

namespace embstore {

// Calls work(next) on the threads on which call_together(run) calls `run`: next() is the number of the thread's next piece, or
// `pieces` where none is left or one of the threads failed. Rethrows what the first that failed threw, when all have ended.
template <class Work, class CallTogether>
void share_pieces(size_t pieces, const Work& work, const CallTogether& call_together) {
  struct Shared {
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    Mutex mutex;
    std::exception_ptr error GUARDED_BY(mutex);

    void fail(std::exception_ptr what) {
      const MutexLock lock(mutex);
      if (error == nullptr) error = std::move(what);
      failed.store(true, std::memory_order_relaxed);
    }
    void rethrow() {
      const MutexLock lock(mutex);
      if (error != nullptr) std::rethrow_exception(error);
    }
  } shared;
  const auto run = [&] {
    try {
      work([&] {
        if (shared.failed.load(std::memory_order_relaxed)) return pieces;
        const size_t piece = shared.next.fetch_add(1, std::memory_order_relaxed);
        return piece < pieces ? piece : pieces;
      });
    } catch (...) {
      shared.fail(std::current_exception());
    }
  };
  try {
    call_together(run);
  } catch (...) {
    shared.fail(std::current_exception());
  }
  shared.rethrow();
}

// The same on so many threads, of which the caller is one.
template <class Work>
void share_work(size_t pieces, int threads, const Work& work) {
  share_pieces(pieces, work, [threads](const auto& run) {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(run);
    run();
  });
}

}  // namespace embstore
