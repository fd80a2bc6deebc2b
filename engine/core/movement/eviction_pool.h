// The process's pool of threads that move rows between tiers, one for all tables, with
// TF_MULTI_TIER_EV_EVICTION_THREADS threads, 1 if that isn't set. A forked child has none of its parent's
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
    // Does one short turn of work, since other jobs wait. Returns true if there is more, for which the job
    // gets another turn.
    virtual bool run() noexcept = 0;

   private:
    friend class EvictionPool;
    // Guarded by the mutex of the pool, which the compiler can't know of here.
    std::list<Job*> place_{this};  // its list node, empty while that is in the queue
    bool running_ = false;
    bool cancelled_ = false;
  };

  // Starts the threads at the first call. Throws Error(kInvalidArgument) for a bad value of the variable, and
  // Error(kStorage) if a thread can't be started; the next call tries again.
  static EvictionPool& instance();

  // Runs the job soon: once, however often it is scheduled before it starts, and never twice at a time.
  void schedule(Job& job) noexcept;
  // Returns when the job is neither queued nor running. It isn't run again, even if it is scheduled.
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
