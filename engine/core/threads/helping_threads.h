// The process's threads that help with large batches, and with restores: whoever comes with work does it too, and needs none of
// them. shared_work.h shares pieces among them.
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
  // So many threads work at a time, of which the caller is one. Until somebody sets it, as many as the environment variable
  // OMP_NUM_THREADS says, or as there are processors, of which some are left where there are many.
  static size_t most_threads();
  // From now on. REQUIRES: count is not 0.
  static void set_most_threads(size_t count);

  // Has this thread make `call`, and beside it as many others as are idle, `others` at most; returns when all have ended. They wait
  // for no thread but those that make the call, which takes no lock that the caller may hold. Where the system refuses threads
  // there are fewer. `call` doesn't throw.
  void call_together(size_t others, const std::function<void()>& call);

 private:
  friend class ProcessLocal<HelpingThreads>;
  HelpingThreads() = default;

  struct Call {
    Call(const std::function<void()>& of, size_t others) : call(of), wanted(others) {}

    const std::function<void()>& call;
    size_t wanted;         // threads that are still to begin
    size_t under_way = 0;  // that have begun
    Condition ended;
  };
  void start_threads(size_t count) REQUIRES(mutex_);
  [[noreturn]] void work();

  Mutex mutex_;
  Condition came_;
  std::deque<Call*> calls_ GUARDED_BY(mutex_);  // for which others are wanted
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embstore
