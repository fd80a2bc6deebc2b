// Tests of objects of which a process has one: threads share it, and a forked child has another.
#include "platform/process_local.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <set>
#include <thread>
#include <vector>

#include "testing/child.h"
#include "testing/tests.h"
#include "threads/mutex.h"

namespace embstore {
namespace {

struct Counter {
  Mutex mutex;
  int count GUARDED_BY(mutex) = 0;
};

int next() {
  Counter& counter = ProcessLocal<Counter>::get();
  const MutexLock lock(counter.mutex);
  return ++counter.count;
}

TEST(threads_that_ask_first_at_the_same_time_get_the_same) {
  struct Fresh {
    int unused = 0;
  };
  std::atomic<bool> go{false};
  std::vector<Fresh*> got(8);
  std::vector<std::thread> threads;
  for (Fresh*& place : got) {
    threads.emplace_back([&] {
      while (!go.load()) {
      }
      place = &ProcessLocal<Fresh>::get();
    });
  }
  go.store(true);
  for (std::thread& thread : threads) thread.join();
  check(std::set<Fresh*>(got.begin(), got.end()).size() == 1, "threads have two of a process's objects");
}

TEST(a_child_starts_with_a_new_object_whose_lock_is_free) {
  check(next() == 1 && next() == 2, "a process's object stays");
  Counter& parents = ProcessLocal<Counter>::get();
  parents.mutex.lock();  // as another thread might, whose work the fork cuts off
  in_child([] {
    alarm(60);
    check(next() == 1, "a child goes on with its parent's object");
    in_child([] { check(next() == 1, "a grandchild goes on with its parent's object"); });
    check(next() == 2, "a child's object stays");
  });
  parents.mutex.unlock();
  check(next() == 3, "a child changed its parent's object");
}

}  // namespace
}  // namespace embstore
