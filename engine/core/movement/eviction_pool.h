// The process's threads that move rows between tiers, one pool for all tables:
// TF_MULTI_TIER_EV_EVICTION_THREADS of them, 1 where that isn't set. A forked child has none of its parent's
// threads, and gets a pool of its own.
#pragma once

#include <atomic>
#include <list>

#include "platform/process_local.h"
#include "threads/mutex.h"

namespace embstore {

class EvictionPool {
 public:
  class Job {
   public:
    virtual ~Job() = default;
    // One turn of work, short, since other jobs wait; true if there is more, for which its turn comes again.
    virtual bool run() noexcept = 0;

   private:
    friend class EvictionPool;
    // Changed under the mutex of the pool, which the compiler can't know of here.
    std::list<Job*> place_{this};  // its place in the queue; empty while it's there
    bool running_ = false;
    bool cancelled_ = false;
  };

  // Starts the threads at the first call. Throws Error(kInvalidArgument) for a bad variable; Error(kStorage) where one
  // can't be started, and the next call tries again.
  static EvictionPool& instance();

  // Runs the job soon, once, however often it's scheduled before it starts; never twice at a time.
  void schedule(Job& job) noexcept;
  // Returns when the job is neither queued nor running. It isn't run again, whoever schedules it.
  void cancel(Job& job);

 private:
  friend class ProcessLocal<EvictionPool>;
  EvictionPool() = default;
  void start_threads();
  [[noreturn]] void work();

  Mutex start_mutex_;
  int threads_ GUARDED_BY(start_mutex_) = 0;
  std::atomic<bool> has_all_threads_{false};

  Mutex mutex_;
  Condition changed_;
  std::list<Job*> queue_ GUARDED_BY(mutex_);
};

}  // namespace embstore
