// A scheduler of host threads for tests: of all explored threads one runs at a time, and which one goes on is drawn from a
// seed. So an interleaving under which a test fails can be had again.
//
// Threads meet in the functions of pthread, which intercepted_calls.cc has in place of the C library's: locks, conditions,
// threads that start and end, waits for an address, sleeps and yields. Each is a point at which another thread may go on. The
// engine needs no hooks for this, and runs as it was compiled. Between two points a thread is alone, so what the explorer can't
// show is a race between threads that meet nowhere; the thread sanitizer is for those.
//
// A thread that waits can't run until what it waits for is there. If none can, that is a deadlock.
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

// What a thread does at a point.
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

  // Starts a schedule, of the calling thread and of those that earlier schedules left waiting. From now on, threads that an
  // explored one starts are explored too.
  void begin(uint64_t seed);
  // Lets all others go on until they wait. They stay explored; the calling thread no longer is. Returns what tells the
  // schedule from others: what ran at which point.
  uint64_t end();

  // Called with what went wrong if all threads wait, or if there is no end; must not return.
  std::function<void(const std::string&)> fail;
  // Prints every point to stderr.
  bool prints = false;

  // What the calling thread is at, for messages.
  void now_at(const std::string& what);
  // A number for the calling thread that is the same whenever the schedule is run again.
  size_t number_of_this_thread() const;
  // What was seen belongs to the schedule as well: told apart by end().
  void note(uint64_t seen);
  uint64_t points() const { return points_; }

  // --- In place of what the C library does. To be called by an explored thread.
  void lock(const void* mutex);
  bool try_lock(const void* mutex);
  // False where the thread doesn't hold it: its lock was left out.
  bool unlock(const void* mutex);
  // After an unlock of either kind.
  void unlocked() { point(Point::kUnlock); }
  void lock_exclusively(const void* lock);
  void lock_shared(const void* lock);
  bool unlock_shared_or_exclusive(const void* lock);
  void wait(const void* condition);
  void notify(const void* condition, bool all);
  // Until wake() of the same address.
  void wait_for_address(const void* address);
  int wake(const void* address, int most);
  void yield();

  struct Thread;
  // A thread that is about to be started; it runs when it is its turn.
  Thread* add();
  void forget(Thread* thread);
  void started(Thread* thread, pthread_t id);
  void run_as(Thread* thread);
  // The calling thread ends.
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
  // Who goes on. `current` may be one that can't.
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
  // How the schedule draws: at every so manieth point, or by priorities, of which the highest runs and some are lowered.
  bool by_priorities_ = false;
  uint64_t switches_one_in_ = 1;
  std::vector<uint64_t> lowered_at_;  // choices
  int64_t lowest_ = 0;
};

}  // namespace embstore::explorer
