// Replacements of the C library's functions by which threads synchronise. The linker uses them for the
// program and for the libraries that it loads; for threads that aren't explored they call the C library's.
//
// An explored thread takes a lock from the scheduler first, and then the real one, which is free.
#include <dlfcn.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "gpu/emulated/fibers.h"
#include "testing/explorer/left_out.h"
#include "testing/explorer/program.h"
#include "testing/explorer/scheduler.h"

namespace embstore::explorer {
namespace {

constexpr std::string_view kClassesOfLocks[] = {"std::mutex::", "std::shared_mutex::", "std::unique_lock::",
                                                "embstore::Mutex::", "embstore::MutexLock::"};

bool is_explored() { return Scheduler::has_this_thread(); }
Scheduler& scheduler() { return Scheduler::instance(); }

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Start {
  Scheduler::Thread* thread;
  void* (*routine)(void*);
  void* argument;
};

// Constructed before all other thread-local objects of its thread, so destroyed after them.
struct End {
  bool is_needed = false;
  ~End() {
    if (is_needed) scheduler().leave();
  }
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  thread_local End end;
  scheduler().run_as(start->thread);
  end.is_needed = true;
  return start->routine(start->argument);
}

// Returns whether the address is in a function of a lock's class that the compiler didn't inline.
bool is_of_a_lock(const void* address) {
  static auto* const known = new std::map<uint64_t, bool>;  // by function, since names are slow to look up
  const uint64_t function = begin_of_function_at(place_of(address));
  const auto [found, is_new] = known->try_emplace(function);
  if (is_new) {
    const std::string name = function_at(function);
    found->second = std::any_of(std::begin(kClassesOfLocks), std::end(kClassesOfLocks),
                                [&](std::string_view of) { return name.starts_with(of); });
  }
  return found->second;
}

// The site of a lock is the code that called the lock's class.
bool is_lock_left_out(const void* caller) {
  if (!left_out().is_used()) return false;
  if (is_of_a_lock(caller)) {
    void* callers[8] = {};
    void** const end = callers + backtrace(callers, static_cast<int>(std::size(callers)));
    void** const found = std::find_if_not(std::find(callers, end, caller), end, is_of_a_lock);
    if (found != end) caller = *found;
  }
  return left_out().leaves_out(Synchronisation::kLock, caller);
}

// Returns whether it's the mutex of the emulated device's fibers, which each thread of a kernel takes.
// Threads don't synchronise by it, since no thread stops while it holds it, and most of the locks taken are
// this one.
bool is_of_fibers(const void* mutex) {
  static const auto* const idle = &gpu::emulated::idle_fibers();
  return mutex >= idle && mutex < idle + 1;
}

}  // namespace
}  // namespace embstore::explorer

using namespace embstore::explorer;

// The sanitizers define some of these functions in the program itself, under this name.
extern "C" __attribute__((weak)) int __interceptor_pthread_create(pthread_t*, const pthread_attr_t*,
                                                                  void* (*)(void*), void*);
extern "C" __attribute__((weak)) int __interceptor_pthread_join(pthread_t, void**);

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static auto* const lock = real<int(pthread_mutex_t*)>("pthread_mutex_lock");
  if (is_explored() && !is_of_fibers(mutex)) {
    if (is_lock_left_out(__builtin_return_address(0))) return 0;
    scheduler().lock(mutex);
  }
  return lock(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static auto* const try_lock = real<int(pthread_mutex_t*)>("pthread_mutex_trylock");
  if (is_explored() && !scheduler().try_lock(mutex)) return EBUSY;
  return try_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static auto* const unlock = real<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  if (!is_explored() || is_of_fibers(mutex)) return unlock(mutex);
  if (!scheduler().unlock(mutex)) return 0;
  const int result = unlock(mutex);
  scheduler().unlocked();
  return result;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* shared) noexcept {
  static auto* const lock = real<int(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  if (is_explored()) {
    if (is_lock_left_out(__builtin_return_address(0))) return 0;
    scheduler().lock_shared(shared);
  }
  return lock(shared);
}

int pthread_rwlock_wrlock(pthread_rwlock_t* shared) noexcept {
  static auto* const lock = real<int(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  if (is_explored()) {
    if (is_lock_left_out(__builtin_return_address(0))) return 0;
    scheduler().lock_exclusively(shared);
  }
  return lock(shared);
}

int pthread_rwlock_unlock(pthread_rwlock_t* shared) noexcept {
  static auto* const unlock = real<int(pthread_rwlock_t*)>("pthread_rwlock_unlock");
  if (!is_explored()) return unlock(shared);
  if (!scheduler().unlock_shared_or_exclusive(shared)) return 0;
  const int result = unlock(shared);
  scheduler().unlocked();
  return result;
}

// Has no spurious wake-ups: a caller waits in a loop, and would wait again.
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static auto* const wait = real<int(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  static auto* const lock = real<int(pthread_mutex_t*)>("pthread_mutex_lock");
  static auto* const unlock = real<int(pthread_mutex_t*)>("pthread_mutex_unlock");
  if (!is_explored()) return wait(condition, mutex);
  const bool has_lock = scheduler().unlock(mutex);
  if (has_lock) unlock(mutex);
  scheduler().wait(condition);
  if (!has_lock) return 0;
  scheduler().lock(mutex);
  return lock(mutex);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static auto* const signal = real<int(pthread_cond_t*)>("pthread_cond_signal");
  if (is_explored()) scheduler().notify(condition, /*all=*/false);
  return signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static auto* const broadcast = real<int(pthread_cond_t*)>("pthread_cond_broadcast");
  if (is_explored()) scheduler().notify(condition, /*all=*/true);
  return broadcast(condition);
}

// The engine has no waits with a time limit.
int pthread_cond_timedwait(pthread_cond_t*, pthread_mutex_t*, const timespec*) {
  std::fprintf(stderr, "the explorer knows no waits that time out\n");
  std::abort();
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t,
                           const timespec* time) {
  return pthread_cond_timedwait(condition, mutex, time);
}

int pthread_create(pthread_t* id, const pthread_attr_t* attributes, void* (*routine)(void*),
                   void* argument) noexcept {
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static Create* const create =
      __interceptor_pthread_create != nullptr ? __interceptor_pthread_create : real<Create>("pthread_create");
  if (!is_explored()) return create(id, attributes, routine, argument);
  Scheduler::Thread* const thread = scheduler().add();
  auto start = std::make_unique<Start>(Start{thread, routine, argument});
  const int error = create(id, attributes, &run, start.get());
  if (error != 0) {
    scheduler().forget(thread);
    return error;
  }
  static_cast<void>(start.release());
  scheduler().started(thread, *id);
  return 0;
}

int pthread_join(pthread_t id, void** result) {
  static auto* const join = __interceptor_pthread_join != nullptr
                                ? __interceptor_pthread_join
                                : real<int(pthread_t, void**)>("pthread_join");
  if (is_explored()) scheduler().join(id);
  return join(id, result);
}

// An update chooses its first shard by this number. The real one is an address.
pthread_t pthread_self() noexcept {
  static auto* const self = real<pthread_t()>("pthread_self");
  return is_explored() ? scheduler().number_of_this_thread() + 1 : self();
}

int sched_yield() noexcept {
  static auto* const yield = real<int()>("sched_yield");
  if (!is_explored()) return yield();
  scheduler().yield();
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  static auto* const sleep = real<int(const timespec*, timespec*)>("nanosleep");
  if (!is_explored()) return sleep(time, left);
  scheduler().yield();
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static auto* const sleep = real<int(clockid_t, int, const timespec*, timespec*)>("clock_nanosleep");
  if (!is_explored()) return sleep(clock, flags, time, left);
  scheduler().yield();
  return 0;
}

// std::atomic and std::counting_semaphore wait by this call. It's declared with the greatest number of
// arguments: those that a call doesn't give are passed on as they are.
long intercepted_syscall(long number, long first, long second, long third, long fourth, long fifth,
                         long sixth) noexcept __asm__("syscall");
long intercepted_syscall(long number, long first, long second, long third, long fourth, long fifth,
                         long sixth) noexcept {
  static auto* const call = real<long(long, ...)>("syscall");
  if (number == SYS_futex && is_explored()) {
    const auto* const address = reinterpret_cast<const int*>(first);
    const auto what = static_cast<int>(second) & FUTEX_CMD_MASK;
    const auto value = static_cast<int>(third);
    if (what == FUTEX_WAIT || what == FUTEX_WAIT_BITSET) {
      if (__atomic_load_n(address, __ATOMIC_SEQ_CST) != value) {
        errno = EAGAIN;
        return -1;
      }
      scheduler().wait_for_address(address);
      return 0;
    }
    if (what == FUTEX_WAKE || what == FUTEX_WAKE_BITSET) return scheduler().wake(address, value);
  }
  return call(number, first, second, third, fourth, fifth, sixth);
}

}  // extern "C"
