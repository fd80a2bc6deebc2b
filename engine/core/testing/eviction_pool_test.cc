// Tests of one eviction thread for many tables: each has its turn, and none has one after it was cancelled.
// And tests of the log of accesses that wait to be counted.
#include "movement/eviction_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "movement/access_log.h"
#include "store/spare_batches.h"
#include "testing/failing_memory.h"
#include "testing/tests.h"

namespace embstore {
namespace {

// A job that always has more to do.
class Restless final : public EvictionPool::Job {
 public:
  bool run() noexcept override {
    ++turns;
    return true;
  }
  std::atomic<uint64_t> turns{0};
};

class Brief final : public EvictionPool::Job {
 public:
  bool run() noexcept override {
    ++turns;
    return false;
  }
  std::atomic<uint64_t> turns{0};
};

void wait_until(const std::function<bool()>& holds, const std::string& otherwise) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    check(std::chrono::steady_clock::now() < deadline, otherwise);
    std::this_thread::yield();
  }
}

EvictionPool& pool_of_one_thread() {
  setenv("TF_MULTI_TIER_EV_EVICTION_THREADS", "1", 1);
  return EvictionPool::instance();
}

uint64_t address_space_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Must be the first test, since it needs a process without an eviction thread.
TEST(a_thread_that_cant_be_started_is_an_error_and_is_tried_again) {
  if (kUnderSanitizer) return;  // the sanitizer needs the address space
  rlimit usual{};
  check(getrlimit(RLIMIT_AS, &usual) == 0, "the limit of the address space can't be had");
  const rlimit no_further_stack{address_space_bytes() + (1 << 20), usual.rlim_max};
  check(setrlimit(RLIMIT_AS, &no_further_stack) == 0, "the address space can't be limited");
  std::string message;
  for (int time = 0; time < 2; ++time) message = error_of(ErrorKind::kStorage, pool_of_one_thread);
  check(setrlimit(RLIMIT_AS, &usual) == 0, "the limit can't be taken back");
  check(message.starts_with("an eviction thread can't be started: "), message);
  Brief brief;
  pool_of_one_thread().schedule(brief);
  wait_until([&] { return brief.turns == 1; }, "a job has no turn after threads couldn't be started");
}

TEST(jobs_have_their_turns_whatever_memory_there_is) {
  EvictionPool& pool = pool_of_one_thread();
  std::vector<Brief> jobs(200);
  {
    const FailingMemory none(0);
    for (Brief& job : jobs) pool.schedule(job);
  }
  for (const Brief& job : jobs) {
    wait_until([&] { return job.turns == 1; }, "a job that was scheduled has no turn");
  }
}

TEST(what_waits_to_be_counted_has_its_bytes_whichever_allocation_fails) {
  SpareBatches spare(RowLayout(4, 0));
  AccessLog log;
  for (int batches = 0; batches < 200; ++batches) {
    with_each_allocation_failing(
        [&] {
          BatchPtr batch = spare.take();
          batch->ids.assign(100, 7);
          log.append(std::move(batch));
        },
        [] {});
  }
  const size_t bytes = log.waiting_bytes();
  check(bytes == 200 * 100 * sizeof(int64_t), "the log says another number of bytes");
  with_each_allocation_failing([&] { log.take_oldest(bytes); }, [] {});
  check(log.empty() && log.waiting_bytes() == 0, "there are bytes of batches that are gone");
}

TEST(a_job_that_never_ends_leaves_the_others_their_turns) {
  EvictionPool& pool = pool_of_one_thread();
  Restless restless;
  Brief brief;
  pool.schedule(restless);
  wait_until([&] { return restless.turns > 0; }, "a job that was scheduled has no turn");
  for (uint64_t turn = 1; turn <= 100; ++turn) {
    pool.schedule(brief);
    wait_until([&] { return brief.turns == turn; }, "a job has no turn beside one that never ends");
  }
  const uint64_t before = restless.turns;
  wait_until([&] { return restless.turns > before; }, "a job that has more to do gets no further turn");
  pool.cancel(restless);
  pool.cancel(brief);
}

TEST(a_job_that_was_cancelled_has_no_turn_any_more) {
  EvictionPool& pool = pool_of_one_thread();
  Restless restless;
  pool.schedule(restless);
  wait_until([&] { return restless.turns > 0; }, "a job that was scheduled has no turn");
  pool.cancel(restless);
  const uint64_t at_the_end = restless.turns;
  pool.schedule(restless);
  Brief after;
  pool.schedule(after);
  wait_until([&] { return after.turns == 1; }, "a job that was scheduled has no turn");
  check(restless.turns == at_the_end, "a job has a turn although it was cancelled");
  pool.cancel(after);
}

}  // namespace
}  // namespace embstore
