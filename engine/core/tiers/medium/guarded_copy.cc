#include "tiers/medium/guarded_copy.h"

#include <setjmp.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "platform/process_local.h"
#include "threads/mutex.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::medium {
namespace {

struct Escape {
  sigjmp_buf to;
  GuardedRange range;
};

// Initial-exec TLS, so that the handler allocates nothing.
__attribute__((tls_model("initial-exec"))) thread_local Escape* volatile escape_of_thread = nullptr;

// The number of handlers that this thread's signal was passed to: a handler that uninstalls itself and raises
// the signal again comes back to ours.
__attribute__((tls_model("initial-exec"))) thread_local volatile unsigned handed_on = 0;

// The handlers before ours, the oldest first. An entry is constant once it's counted.
constexpr unsigned kMaxHandlers = 8;
struct sigaction earlier_handlers[kMaxHandlers];
std::atomic<unsigned> earlier_count{0};
struct Installation {
  Mutex mutex;
};

void hand_on(int signal, siginfo_t* info, void* context) {
  const unsigned count = earlier_count.load(std::memory_order_acquire);
  const unsigned tried = handed_on;
  if (tried < count) {
    const struct sigaction& earlier = earlier_handlers[count - 1 - tried];
    handed_on = tried + 1;
    if ((earlier.sa_flags & SA_SIGINFO) != 0) {
      earlier.sa_sigaction(signal, info, context);
      handed_on = tried;
      return;
    }
    if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
      earlier.sa_handler(signal);
      handed_on = tried;
      return;
    }
    if (earlier.sa_handler == SIG_IGN && info->si_code <= 0) {  // sent by kill(), which may be ignored
      handed_on = tried;
      return;
    }
  }
  // The system's default: the process ends. A fault is raised again when this returns, a kill() must be.
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);
  if (info->si_code <= 0) raise(signal);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  Escape* const escape = escape_of_thread;
  if (escape != nullptr && info->si_code > 0) {
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const auto begin = reinterpret_cast<uintptr_t>(escape->range.begin);
    const auto end = reinterpret_cast<uintptr_t>(escape->range.end);
    if (address >= begin / kBlockBytes * kBlockBytes && address < end) siglongjmp(escape->to, 1);
  }
  hand_on(signal, info, context);
}

}  // namespace

bool guarded_copy(void (*copy)(void* argument, GuardedRange& range), void* argument) {
  Escape escape;
  // Doesn't save the signal mask, which would take a system call: the handler leaves it as it is
  // (SA_NODEFER).
  if (sigsetjmp(escape.to, 0) != 0) {
    escape_of_thread = nullptr;
    return false;
  }
  escape_of_thread = &escape;
  copy(argument, escape.range);
  escape_of_thread = nullptr;
  return true;
}

void catch_bus_errors() {
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) != 0) return;
  const auto is_ours = [](const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &on_bus_error;
  };
  if (is_ours(now)) return;
  const MutexLock lock(ProcessLocal<Installation>::get().mutex);
  if (sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
  // A handler that came back (for example, faulthandler disabled and enabled) is in the list already; keep it
  // and those before it.
  unsigned count = earlier_count.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count; ++i) {
    if (std::memcmp(&earlier_handlers[i].sa_sigaction, &now.sa_sigaction, sizeof now.sa_sigaction) == 0) {
      count = i;
    }
  }
  if (count == kMaxHandlers) return;
  earlier_handlers[count] = now;
  earlier_count.store(count + 1, std::memory_order_release);
  struct sigaction ours = {};
  ours.sa_sigaction = &on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace embstore::medium
