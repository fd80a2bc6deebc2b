#include "threads/helping_threads.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "threads/safe_point.h"

namespace embstore {

size_t HelpingThreads::most_threads() {
  constexpr size_t kMost = 16;  // rows come no faster by more
  static const size_t processors = std::thread::hardware_concurrency();
  return std::clamp<size_t>(processors, 2, kMost);
}

void HelpingThreads::call_together(size_t others, const std::function<void()>& call) {
  Call together(call, others);
  {
    const MutexLock lock(mutex_);
    start_threads(std::min(others, most_threads() - 1));
    if (others != 0) calls_.push_back(&together);
  }
  for (size_t i = 0; i < others; ++i) came_.notify_one();
  call();
  const MutexLock lock(mutex_);
  std::erase(calls_, &together);  // whoever hasn't begun has nothing left to do
  while (together.under_way != 0) together.ended.wait(mutex_);
}

void HelpingThreads::start_threads(size_t count) {
  try {
    for (; threads_ < count; ++threads_) std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    // The caller works, and the next call tries again.
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
