// Tests of the right to move rows: threads get it in the order in which they asked, and a pause turns away
// threads that wait only for moves.
#include "movement/right_to_move.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "testing/tests.h"

namespace embstore {
namespace {

constexpr size_t kThreads = 50;

// Returns once `threads` threads wait for the right.
void wait_for_waiting(const RightToMove& right, size_t threads) {
  while (right.waiting_threads() != threads) std::this_thread::yield();
}

TEST(threads_get_the_right_in_the_order_in_which_they_asked) {
  RightToMove right;
  std::vector<size_t> order;
  std::vector<std::thread> threads;
  {
    const RightToMove::Scope scope(right);
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&right, &order, t] {
        const RightToMove::Scope turn(right);
        order.push_back(t);
      });
      wait_for_waiting(right, t + 1);
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) check(order[t] == t, "a thread got the right before its turn");
  check(order.size() == kThreads, "a thread didn't get the right");
}

TEST(one_thread_has_the_right_at_a_time) {
  constexpr int kTurns = 2000;
  RightToMove right;
  int turns = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&right, &turns, t] {
      for (int turn = 0; turn < kTurns; ++turn) {
        if (t % 2 == 0) {
          const RightToMove::Scope scope(right);
          ++turns;
        } else {
          while (!right.try_lock()) std::this_thread::yield();
          ++turns;
          right.unlock();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  check(turns == 8 * kTurns, "two threads had the right at once");
}

TEST(no_thread_gets_the_right_before_those_that_wait) {
  RightToMove right;
  std::atomic<bool> got{false};
  std::atomic<bool> done{false};
  right.lock();
  std::thread waiter([&] {
    right.lock();
    got = true;
    while (!done) std::this_thread::yield();
    right.unlock();
  });
  wait_for_waiting(right, 1);
  check(!right.try_lock(), "the right was had twice");
  right.unlock();
  check(!right.try_lock(), "a thread got the right past one that waits");
  while (!got) std::this_thread::yield();
  done = true;
  waiter.join();
  const bool is_free = right.try_lock();
  if (is_free) right.unlock();
  check(is_free, "nobody has the right, and it can't be had");
}

TEST(a_pause_turns_away_threads_that_wait_only_for_moves) {
  RightToMove right;
  std::atomic<size_t> refused{0};
  std::atomic<bool> paused{false};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  right.lock();
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&right, &refused, t] {
      if (t % 2 == 0) {
        const RightToMove::Scope scope(right);
      } else {
        const bool has_right = right.lock_unless_paused();
        refused += !has_right;
        if (has_right) right.unlock();
      }
    });
    wait_for_waiting(right, t + 1);
  }
  std::thread pause([&] {
    right.lock_for_pause();
    paused = true;
    while (!done) std::this_thread::yield();
    right.unlock_after_pause();
  });
  // The pause hasn't begun: the right is still held.
  while (refused != kThreads / 2) std::this_thread::yield();
  wait_for_waiting(right, kThreads / 2 + 1);
  check(!right.lock_unless_paused(), "a pause is waited for that is asked for");
  right.unlock();
  while (!paused) std::this_thread::yield();
  check(!right.lock_unless_paused(), "a pause is waited for");
  done = true;
  pause.join();
  for (std::thread& thread : threads) thread.join();
  const bool has_right = right.lock_unless_paused();
  check(has_right, "a pause that is over holds moves off");
  if (has_right) right.unlock();
}

}  // namespace
}  // namespace embstore
