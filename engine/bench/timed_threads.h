// Runs the same work in several threads for a while, to measure their throughput together.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

namespace embstore {

enum class Clocked {
  kElapsed,  // all bytes over the time from first start to last end: threads that wait for a disk take turns
  kRunning,  // each thread's bytes over its CPU time, which includes waits for memory but not for a processor
};

// Returns the CPU time of this thread, in seconds.
inline double running_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Calls work(thread, stop) on each of `threads` threads at once. `work` returns how many bytes it has moved
// (more than 0) soon after `stop` is set, which happens after `seconds`. Returns MB (10^6 bytes) per second
// of all threads together. Rethrows what one threw. REQUIRES, for kRunning: a processor for each thread.
inline double megabytes_per_second(int threads, double seconds, Clocked clocked,
                                   const std::function<double(int, const std::atomic<bool>&)>& work) {
  using Clock = std::chrono::steady_clock;
  struct Done {
    Clock::time_point start;
    Clock::time_point end;
    double running_seconds = 0;
    double bytes = 0;
    std::exception_ptr failure;
  };
  std::atomic<bool> stop{false};
  std::latch ready(threads + 1);
  std::vector<Done> all(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> workers;
    workers.reserve(all.size());
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        Done& own = all[static_cast<size_t>(i)];
        ready.arrive_and_wait();
        own.start = Clock::now();
        const double before = running_seconds();
        try {
          own.bytes = work(i, stop);
        } catch (...) {
          own.failure = std::current_exception();
          stop = true;
        }
        own.running_seconds = running_seconds() - before;
        own.end = Clock::now();
      });
    }
    ready.arrive_and_wait();
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    while (!stop && Clock::now() < end) {
      std::this_thread::sleep_for(
          std::min<Clock::duration>(std::chrono::milliseconds(5), end - Clock::now()));
    }
    stop = true;
  }
  double bytes = 0;
  double rates = 0;
  Clock::time_point start = all.front().start;
  Clock::time_point end = all.front().end;
  for (const Done& done : all) {
    if (done.failure) std::rethrow_exception(done.failure);
    bytes += done.bytes;
    rates += done.bytes / done.running_seconds;
    start = std::min(start, done.start);
    end = std::max(end, done.end);
  }
  const std::chrono::duration<double> elapsed = end - start;
  return (clocked == Clocked::kRunning ? rates : bytes / elapsed.count()) / 1e6;
}

}  // namespace embstore
