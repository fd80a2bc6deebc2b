// The process's threads that help with large batches and with restores. The thread that brings the work does
// a part of it too, and can do all of it alone. shared_work.h shares pieces of work among them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore {

class HelpingThreads {
 public:
  static HelpingThreads& instance() { return ProcessLocal<HelpingThreads>::get(); }
  // Returns the number of threads that work at a time, including the caller. Until it is set:
  // OMP_NUM_THREADS, or the number of processors if that isn't set, but at most 16.
  static size_t max_threads();
  // REQUIRES: count is not 0.
  static void set_most_threads(size_t count);

  // Makes `call` on this thread and, at the same time, on those helping threads that are idle, at most
  // `others`; returns when all calls have ended. REQUIRES: `call` doesn't throw, takes no lock that the
  // caller may hold, and waits for no threads but those that make the same call. If the system refuses
  // threads, there are fewer.
  void call_together(size_t others, const std::function<void()>& call);

 private:
  friend class ProcessLocal<HelpingThreads>;
  HelpingThreads() = default;

  struct Call {
    Call(const std::function<void()>& function, size_t others) : call(function), wanted(others) {}

    const std::function<void()>& call;
    size_t wanted;         // number of threads that may still begin
    size_t under_way = 0;  // number of threads that have begun and not ended
    Condition ended;
  };
  void start_threads(size_t count) REQUIRES(mutex_);
  [[noreturn]] void work();

  Mutex mutex_;
  Condition came_;
  std::deque<Call*> calls_ GUARDED_BY(mutex_);  // calls for which more threads are wanted
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
