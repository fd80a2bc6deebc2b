// The gate through which updates of a table or a database pass: either any number of them at a time, or one
// thread alone, which then sees whole batches only.
#pragma once

#include <shared_mutex>

#include "threads/mutex.h"

namespace embstore {

class CAPABILITY("apply gate") ApplyGate {
 public:
  void enter() ACQUIRE_SHARED() {
    const MutexLock lock(turnstile_);
    gate_.lock_shared();
  }
  void leave() RELEASE_SHARED() { gate_.unlock_shared(); }
  // The turnstile keeps a stream of updates from starving a thread that wants to be alone.
  void enter_alone() ACQUIRE() NO_THREAD_SAFETY_ANALYSIS {
    turnstile_.lock();
    gate_.lock();
  }
  void leave_alone() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    gate_.unlock();
    turnstile_.unlock();
  }

  // Tells the compiler that the gate is held alone if it can't see that, for example because the scope is a
  // member.
  void assert_held_alone() const ASSERT_CAPABILITY(this) {}

  class SCOPED_CAPABILITY Shared {
   public:
    explicit Shared(ApplyGate& gate) ACQUIRE_SHARED(gate) : gate_(gate) { gate_.enter(); }
    ~Shared() RELEASE_GENERIC() { gate_.leave(); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

   private:
    ApplyGate& gate_;
  };
  class SCOPED_CAPABILITY Alone {
   public:
    explicit Alone(ApplyGate& gate) ACQUIRE(gate) : gate_(gate) { gate_.enter_alone(); }
    ~Alone() RELEASE() { gate_.leave_alone(); }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    ApplyGate& gate_;
  };

 private:
  Mutex turnstile_;
  std::shared_mutex gate_;
};

}  // namespace embstore
