// Threads that do the same for a while, to tell how much they get done together.
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
  kElapsed,  // as who waits for a disk has it
  kRunning,  // without what the system gave to others: who waits for memory runs
};

// Seconds that this thread has run.
inline double running_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Calls work(thread, stop) on each of `threads` threads at once; it returns how many bytes it has moved, some, once
// `stop` is set, which is after `seconds`. Returns MB (10^6 bytes) a second of all. Rethrows what one threw.
// REQUIRES, for kRunning: a processor for each thread.
inline double megabytes_per_second(int threads, double seconds, Clocked clocked,
                                   const std::function<double(int, const std::atomic<bool>&)>& work) {
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> stop{false};
  std::latch ready(threads + 1);
  std::vector<double> rates(static_cast<size_t>(threads));
  std::vector<std::exception_ptr> failures(static_cast<size_t>(threads));
  {
    std::vector<std::jthread> workers;
    workers.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        ready.arrive_and_wait();
        const Clock::time_point start = Clock::now();
        const double running_before = running_seconds();
        try {
          const double bytes = work(i, stop);
          // Each by its own time: the last access of one may end long after another's.
          const std::chrono::duration<double> elapsed = Clock::now() - start;
          const double running = running_seconds() - running_before;
          rates[static_cast<size_t>(i)] =
              bytes / 1e6 / (clocked == Clocked::kRunning ? running : elapsed.count());
        } catch (...) {
          failures[static_cast<size_t>(i)] = std::current_exception();
          stop = true;
        }
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
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace embstore
