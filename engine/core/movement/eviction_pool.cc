#include "movement/eviction_pool.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>

#include "errors/error.h"
#include "platform/process_local.h"

namespace embstore {
namespace {

int thread_count() {
  constexpr const char* kVariable = "TF_MULTI_TIER_EV_EVICTION_THREADS";
  const char* value = std::getenv(kVariable);
  if (value == nullptr || *value == '\0') return 1;
  int threads = 0;
  const char* end = value + std::strlen(value);
  const auto [rest, error] = std::from_chars(value, end, threads);
  if (error != std::errc() || rest != end || threads < 1 || threads > 256) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string(kVariable) + " must be a number of threads from 1 to 256, got " + value);
  }
  return threads;
}

}  // namespace

EvictionPool& EvictionPool::instance() {
  EvictionPool& pool = ProcessLocal<EvictionPool>::get();
  if (!pool.has_all_threads_.load(std::memory_order_acquire)) pool.start_threads();
  return pool;
}

void EvictionPool::start_threads() {
  const MutexLock lock(start_mutex_);
  if (has_all_threads_.load(std::memory_order_relaxed)) return;
  const int wanted = thread_count();
  for (; threads_ < wanted; ++threads_) {
    try {
      std::thread([this] { work(); }).detach();
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::kStorage, "an eviction thread can't be started: " + error.code().message() +
                                           "; raise the limit of threads (ulimit -u), or end others");
    }
  }
  has_all_threads_.store(true, std::memory_order_release);
}

void EvictionPool::schedule(Job& job) noexcept {
  {
    const MutexLock lock(mutex_);
    if (job.place_.empty() || job.cancelled_) return;
    queue_.splice(queue_.end(), job.place_);
  }
  changed_.notify_all();
}

void EvictionPool::cancel(Job& job) {
  const MutexLock lock(mutex_);
  job.cancelled_ = true;
  queue_.remove(&job);
  while (job.running_) changed_.wait(mutex_);
}

void EvictionPool::work() {
  MutexLock lock(mutex_);
  for (;;) {
    // A job that is running is left for the thread that runs it, or for later.
    const auto next =
        std::find_if(queue_.begin(), queue_.end(), [](const Job* job) { return !job->running_; });
    if (next == queue_.end()) {
      changed_.wait(mutex_);
      continue;
    }
    Job& job = **next;
    job.place_.splice(job.place_.end(), queue_, next);
    job.running_ = true;
    lock.unlock();
    const bool is_more = job.run();
    lock.lock();
    job.running_ = false;
    if (is_more && !job.cancelled_) queue_.splice(queue_.end(), job.place_);  // behind the other jobs
    changed_.notify_all();
  }
}

}  // namespace embstore
