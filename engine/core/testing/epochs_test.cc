// Tests of retired objects and the guards that are held: no object is freed too early or kept too long, and
// no thread waits to enter.
#include "threads/epochs.h"

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/tests.h"

namespace embstore {
namespace {

class Counted : public Retirable {
 public:
  static constexpr uint64_t kAlive = 0x5afe;
  explicit Counted(std::atomic<int>& alive) : alive_(alive) { ++alive_; }
  ~Counted() override {
    value_.store(0);
    --alive_;
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int>& alive_;
  std::atomic<uint64_t> value_{kAlive};
};

TEST(an_object_that_no_guard_holds_is_freed_at_once) {
  Epochs epochs;
  std::atomic<int> alive{0};
  epochs.retire(std::make_unique<Counted>(alive));
  check(alive == 0, "an object is kept that no guard holds back");
  {
    const Epochs::Guard later = epochs.enter();
    check(alive == 0, "an object came back");
  }
}

TEST(an_object_goes_with_the_last_guard_that_was_held_when_it_was_retired) {
  Epochs epochs;
  std::atomic<int> alive{0};
  std::optional<Epochs::Guard> first;
  std::optional<Epochs::Guard> second;
  std::optional<Epochs::Guard> later;
  const auto enter = [&epochs](std::optional<Epochs::Guard>& guard) {
    struct Made {
      Epochs& epochs;
      operator Epochs::Guard() const { return epochs.enter(); }
    };
    guard.emplace(Made{epochs});
  };
  enter(first);
  enter(second);
  epochs.retire(std::make_unique<Counted>(alive));
  enter(later);
  first.reset();
  check(alive == 1, "an object was freed that a guard holds back");
  epochs.reclaim();
  check(alive == 1, "an object was freed that a guard holds back");
  second.reset();
  check(alive == 0, "an object outlived the last guard that held it back");
  epochs.retire(std::make_unique<Counted>(alive));
  check(alive == 1, "an object was freed that a guard holds back");
  later.reset();
  check(alive == 0, "an object outlived the last guard that held it back");
}

TEST(a_refreshed_guard_keeps_only_what_is_retired_from_then_on) {
  Epochs epochs;
  std::atomic<int> alive{0};
  {
    Epochs::Guard guard = epochs.enter();
    for (int i = 0; i < 100; ++i) {
      epochs.retire(std::make_unique<Counted>(alive));
      epochs.retire(std::make_unique<Counted>(alive));
      check(alive == 2, "a guard doesn't hold back what is retired after its refresh");
      guard.refresh();
      check(alive == 0, "a refreshed guard holds back what was retired before");
    }
    const Epochs::Guard outer = epochs.enter();
    epochs.retire(std::make_unique<Counted>(alive));
    guard.refresh();
    check(alive == 1, "a refresh speaks for another guard of its thread");
  }
  check(alive == 0, "an object outlived the guards");
}

TEST(what_is_still_retired_goes_with_the_epochs) {
  std::atomic<int> alive{0};
  Epochs epochs;
  std::optional<std::thread> holder;
  std::barrier<> held(2);
  std::barrier<> retired(2);
  holder.emplace([&] {
    const Epochs::Guard guard = epochs.enter();
    held.arrive_and_wait();
    retired.arrive_and_wait();
  });
  held.arrive_and_wait();
  for (int i = 0; i < 1000; ++i) epochs.retire(std::make_unique<Counted>(alive));
  check(alive == 1000, "an object was freed that another thread's guard holds back");
  retired.arrive_and_wait();
  epochs.wait_until_idle();
  holder->join();
  check(alive == 0, "objects outlived the guard of another thread");
}

// Every thread holds two guards at the same time: if the number of guards were limited, this test would hang.
TEST(a_thousand_threads_hold_nested_guards_at_once) {
  constexpr int kThreads = 1000;
  Epochs epochs;
  std::atomic<int> alive{0};
  std::barrier<> all_inside(kThreads + 1);
  std::barrier<> seen(kThreads + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const Epochs::Guard outer = epochs.enter();
      const Epochs::Guard inner = epochs.enter();
      all_inside.arrive_and_wait();
      seen.arrive_and_wait();
    });
  }
  all_inside.arrive_and_wait();
  epochs.retire(std::make_unique<Counted>(alive));
  check(alive == 1, "an object was freed under a thousand guards");
  seen.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  check(alive == 0, "an object outlived a thousand guards");
}

TEST(one_thread_holds_any_number_of_guards) {
  Epochs epochs;
  std::atomic<int> alive{0};
  {
    struct Nested {
      explicit Nested(Epochs& epochs) : guard(epochs.enter()) {}
      Epochs::Guard guard;
    };
    std::vector<std::unique_ptr<Nested>> guards;
    for (int i = 0; i < 3000; ++i) guards.push_back(std::make_unique<Nested>(epochs));
    epochs.retire(std::make_unique<Counted>(alive));
    while (guards.size() > 1) guards.pop_back();
    check(alive == 1, "an object was freed that the outermost guard holds back");
  }
  check(alive == 0, "an object outlived the outermost guard");
}

// The address sanitizer reports a read that comes too late; mostly the value shows it, too.
void readers_never_meet_what_was_freed(int threads, int rounds) {
  Epochs epochs;
  std::atomic<int> alive{0};
  std::atomic<Counted*> current{std::make_unique<Counted>(alive).release()};
  std::atomic<int> readers{threads};
  const auto look = [&current] {
    const Counted* const object = current.load();
    for (int i = 0; i < 20; ++i) check(object->value() == Counted::kAlive, "an object was freed too early");
  };
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (int round = 0; round < rounds; ++round) {
        Epochs::Guard guard = epochs.enter();
        look();
        if (round % 3 == t % 3) {
          const Epochs::Guard nested = epochs.enter();
          look();
        }
        if (round % 2 == 0) {
          guard.refresh();
          look();
        }
      }
      --readers;
    });
  }
  for (int writer = 0; writer < 2; ++writer) {
    running.emplace_back([&] {
      while (readers.load() > 0) {
        auto next = std::make_unique<Counted>(alive);
        epochs.retire(std::unique_ptr<Retirable>(current.exchange(next.release())));
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  check(alive == 1, "objects are kept that nobody looks at: " + std::to_string(alive.load() - 1));
  delete current.load();
}

TEST(few_readers_never_meet_what_was_freed) {
  readers_never_meet_what_was_freed(/*threads=*/4, /*rounds=*/20'000);
}

TEST(many_readers_never_meet_what_was_freed) {
  readers_never_meet_what_was_freed(/*threads=*/100, /*rounds=*/200);
}

}  // namespace
}  // namespace embstore
