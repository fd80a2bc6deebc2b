#include "threads/helping_threads.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "threads/safe_point.h"

namespace embstore {
namespace {

// OMP_NUM_THREADS, which users set for all libraries that have threads of their own. Ignores a value that
// isn't a positive number.
std::optional<size_t> threads_by_environment() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  const long count = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return count > 0 ? std::optional(static_cast<size_t>(count)) : std::nullopt;
}

size_t max_at_first() {
  constexpr size_t kMax = 16;  // more threads don't make rows come faster
  return std::clamp<size_t>(threads_by_environment().value_or(std::thread::hardware_concurrency()), 1, kMax);
}

// 0: not set or asked for yet. It isn't a local static, whose lock a fork could leave held.
constinit std::atomic<size_t> set_most{0};

}  // namespace

size_t HelpingThreads::max_threads() {
  size_t threads = set_most.load(std::memory_order_relaxed);
  if (threads != 0) [[likely]]
    return threads;
  const size_t at_first = max_at_first();
  return set_most.compare_exchange_strong(threads, at_first, std::memory_order_relaxed) ? at_first : threads;
}

void HelpingThreads::set_most_threads(size_t count) { set_most.store(count, std::memory_order_relaxed); }

void HelpingThreads::call_together(size_t others, const std::function<void()>& call) {
  Call together(call, others);
  {
    const MutexLock lock(mutex_);
    start_threads(std::min(others, max_threads() - 1));
    try {
      if (others != 0) calls_.push_back(&together);
    } catch (const std::bad_alloc&) {
      others = 0;  // the caller does all the work
    }
  }
  for (size_t i = 0; i < others; ++i) came_.notify_one();
  call();
  const MutexLock lock(mutex_);
  std::erase(calls_, &together);  // a thread that hasn't begun has nothing left to do
  while (together.under_way != 0) together.ended.wait(mutex_);
}

void HelpingThreads::start_threads(size_t count) {
  try {
    for (; threads_ < count; ++threads_) std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    // The caller does the work, and the next call tries again.
  }
}

void HelpingThreads::work() {
  MutexLock lock(mutex_);
  for (;;) {
    if (calls_.empty()) {
      came_.wait(mutex_);
      continue;
    }
    Call& together = *calls_.front();
    ++together.under_way;
    if (--together.wanted == 0) calls_.pop_front();
    lock.unlock();
    together.call();
    safe_point();
    lock.lock();
    if (--together.under_way == 0) together.ended.notify_one();
  }
}

}  // namespace embstore
