// Allocations that fail: a program that has testing/failing_memory.cc is told by which of its own.
#pragma once

#include <cstdint>
#include <new>

namespace embstore {

// The thread sanitizer has allocation functions of its own, so nothing fails under it.
class FailingMemory {
 public:
  // The thread's allocation of that number, from 0, fails while this lives.
  explicit FailingMemory(int64_t number);
  ~FailingMemory();
  bool has_failed() const;
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
};

// Calls try_it() until it has succeeded: when each of its allocations has failed once, unless it can do without one. Calls
// after_failure() after every other time.
template <class Try, class AfterFailure>
void with_each_allocation_failing(Try try_it, AfterFailure after_failure) {
  for (int64_t number = 0;; ++number) {
    try {
      const FailingMemory memory(number);
      try_it();
      return;
    } catch (const std::bad_alloc&) {
    }
    after_failure();
  }
}

}  // namespace embstore
