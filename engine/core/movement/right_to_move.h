// The right to move a table's rows between tiers, which one thread has at a time. Threads get it in the order
// in which they asked: it is handed over to the thread that waited longest, so that none waits for ever,
// however many there are, and none is woken in vain.
#pragma once

#include <cstddef>

#include "threads/mutex.h"

namespace embstore {

class CAPABILITY("right to move") RightToMove {
 public:
  RightToMove() = default;
  RightToMove(const RightToMove&) = delete;
  RightToMove& operator=(const RightToMove&) = delete;

  void lock() ACQUIRE() EXCLUDES(mutex_);
  // False if another thread has the right or waits for it.
  bool try_lock() TRY_ACQUIRE(true) EXCLUDES(mutex_);
  void unlock() RELEASE() EXCLUDES(mutex_);

  // For threads that hold moves off, maybe for long.
  void lock_for_pause() ACQUIRE() EXCLUDES(mutex_);
  void unlock_after_pause() RELEASE() EXCLUDES(mutex_);
  // Waits for moves, but not for pauses: returns false if there is a pause, or if one begins meanwhile.
  bool lock_unless_paused() TRY_ACQUIRE(true) EXCLUDES(mutex_);

  size_t waiting_threads() const EXCLUDES(mutex_);

  // Tells the compiler that the right is held where it can't see it.
  void assert_held() const ASSERT_CAPABILITY(this) {}

  // Holds the right for a scope.
  class SCOPED_CAPABILITY Scope {
   public:
    explicit Scope(RightToMove& right) ACQUIRE(right) : right_(right) { right_.lock(); }
    ~Scope() RELEASE() { right_.unlock(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RightToMove& right_;
  };

 private:
  enum class Turn { kWaits, kHasCome, kIsRefused };
  struct Waiter {
    explicit Waiter(bool waits_for_a_pause) : waits_for_pauses(waits_for_a_pause) {}

    const bool waits_for_pauses;
    Turn turn = Turn::kWaits;
    Condition turned;
    Waiter* next = nullptr;
  };

  // Returns false if a pause came first.
  bool wait_for_turn(bool waits_for_pauses) REQUIRES(mutex_);
  void hand_over() REQUIRES(mutex_);

  mutable Mutex mutex_;
  bool is_held_ GUARDED_BY(mutex_) = false;
  int pauses_ GUARDED_BY(mutex_) = 0;                  // under way or waited for
  Waiter* first_waiter_ GUARDED_BY(mutex_) = nullptr;  // each links to the thread that asked next
};

}  // namespace embstore
