// The process's threads that move rows between tiers, one pool for all tables:
// TF_MULTI_TIER_EV_EVICTION_THREADS of them, 1 where that isn't set. A forked child has none of its parent's
// threads, and gets a pool of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "platform/fork.h"

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
    bool queued_ = false;     // guarded by the pool's mutex
    bool running_ = false;    // guarded by the pool's mutex
    bool cancelled_ = false;  // guarded by the pool's mutex
  };

  // Starts the threads at the first call. Throws Error(kInvalidArgument) for a bad variable.
  static EvictionPool& instance();

  // Runs the job soon, once, however often it's scheduled before it starts; never twice at a time.
  void schedule(Job& job);
  // Returns when the job is neither queued nor running. It isn't run again, whoever schedules it.
  void cancel(Job& job);

 private:
  EvictionPool() = default;
  void start(int threads);
  [[noreturn]] void work();

  const ForkGeneration made_in_ = fork_generation();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job*> queue_;  // guarded by mutex_
};

}  // namespace embstore
