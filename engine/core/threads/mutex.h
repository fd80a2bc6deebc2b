// Locks whose rules the compiler checks with Clang's thread-safety analysis; `make check` builds with it.
// GUARDED_BY says which lock guards a variable; REQUIRES, which lock a function's caller must hold.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define EMBSTORE_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define EMBSTORE_THREAD_ANNOTATION(attribute)
#endif

#define CAPABILITY(name) EMBSTORE_THREAD_ANNOTATION(capability(name))
#define SCOPED_CAPABILITY EMBSTORE_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(lock) EMBSTORE_THREAD_ANNOTATION(guarded_by(lock))
#define PT_GUARDED_BY(lock) EMBSTORE_THREAD_ANNOTATION(pt_guarded_by(lock))
#define REQUIRES(...) EMBSTORE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) EMBSTORE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) EMBSTORE_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) EMBSTORE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) EMBSTORE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) EMBSTORE_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) EMBSTORE_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define EXCLUDES(...) EMBSTORE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ASSERT_CAPABILITY(lock) EMBSTORE_THREAD_ANNOTATION(assert_capability(lock))
#define NO_THREAD_SAFETY_ANALYSIS EMBSTORE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace embstore {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  // Tells the compiler that the mutex is held if it can't see that, for example because a caller's scope
  // holds it.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a mutex for a scope; may release it in between.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }
  void unlock() RELEASE() {
    held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// A condition variable for a Mutex. Wait in a loop that checks the guarded state: the analysis can't see into
// the lambda of a predicate.
class Condition {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace embstore
