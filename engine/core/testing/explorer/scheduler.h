// A scheduler of host threads for tests: only one of the explored threads runs at a time, and the next one is
// drawn from a seed. So an interleaving under which a test fails can be repeated.
//
// Threads synchronise by the functions of pthread, which intercepted_calls.cc replaces: locks, conditions,
// starts and ends of threads, waits for an address, sleeps and yields. Each call is a point at which another
// thread may go on. The engine needs no hooks for this, and runs as it was compiled. Between two points only
// one thread runs, so the explorer can't show a race between threads that don't synchronise; the thread
// sanitizer finds those.
//
// A thread that waits can't run until its condition holds. If no thread can run, that is a deadlock.
#pragma once

#include <pthread.h>
#include <semaphore.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "gpu/emulated/draws.h"

namespace embstore::explorer {

// The kinds of points.
enum class Point : uint8_t {
  kLock,
  kUnlock,
  kSharedLock,
  kCondition,
  kNotify,
  kAddress,
  kThread,
  kJoin,
  kYield,
};

class Scheduler {
 public:
  static Scheduler& instance();
  // True if the calling thread is explored.
  static bool has_this_thread();

  // Starts a schedule with the calling thread and those that earlier schedules left waiting. From now on,
  // threads that an explored thread starts are explored too.
  void begin(uint64_t seed);
  // Lets all other threads go on until they wait. They stay explored; the calling thread no longer is.
  // Returns a hash of the schedule: what ran at which point.
  uint64_t end();

  // Called with a message if all threads wait, or the schedule doesn't end; must not return.
  std::function<void(const std::string&)> fail;
  // Prints every point to stderr.
  bool prints = false;

  // Says what the calling thread does, for messages.
  void now_at(const std::string& what);
  // Returns a number for the calling thread that is the same whenever the schedule is run again.
  size_t number_of_this_thread() const;
  // Adds what a thread saw to the hash that end() returns.
  void note(uint64_t seen);
  uint64_t points() const { return points_; }

  // --- Replacements of the C library's functions, called by explored threads.
  void lock(const void* mutex);
  bool try_lock(const void* mutex);
  // Returns false if the thread doesn't hold the mutex, because its lock was left out.
  bool unlock(const void* mutex);
  // Called after an unlock of either kind.
  void unlocked() { point(Point::kUnlock); }
  void lock_exclusively(const void* lock);
  void lock_shared(const void* lock);
  bool unlock_shared_or_exclusive(const void* lock);
  void wait(const void* condition);
  void notify(const void* condition, bool all);
  // Waits until wake() of the same address.
  void wait_for_address(const void* address);
  int wake(const void* address, int most);
  void yield();

  struct Thread;
  // Adds a thread that is about to be started; it runs when its turn comes.
  Thread* add();
  void forget(Thread* thread);
  void started(Thread* thread, pthread_t id);
  void run_as(Thread* thread);
  // Ends the calling thread.
  void leave();
  void join(pthread_t id);

 private:
  struct SharedLock {
    const Thread* owner = nullptr;
    std::vector<const Thread*> readers;
  };

  void point(Point kind);
  void block(Point kind, const void* on);
  void wake_all(Point kind, const void* on);
  void yield_to_another(Point kind);
  // Returns the thread that goes on. `current` may be unable to.
  Thread& pick(Thread& current, bool gives_way);
  void switch_to(Thread& next, Thread& current);
  void trace(Point kind);
  std::string described() const;

  gpu::emulated::Draws draws_{0};
  std::vector<std::unique_ptr<Thread>> threads_;
  std::unordered_map<const void*, const Thread*> owners_;
  std::unordered_map<const void*, SharedLock> shared_locks_;
  uint64_t points_ = 0;
  uint64_t choices_ = 0;  // points at which another thread could run
  uint64_t hash_ = 0;
  size_t next_number_ = 0;
  // The schedule switches threads at random, at one point in switches_one_in_; or by priorities: the thread
  // with the highest runs, and some are lowered at the choices in lowered_at_.
  bool by_priorities_ = false;
  uint64_t switches_one_in_ = 1;
  std::vector<uint64_t> lowered_at_;  // numbers of choices
  int64_t lowest_ = 0;
};

}  // namespace embstore::explorer
