// Makes allocations fail in programs that are linked with testing/failing_memory.cc.
#pragma once

#include <cstdint>
#include <new>

namespace embstore {

// The thread sanitizer has its own allocation functions, so nothing fails under it.
class FailingMemory {
 public:
  // During the object's life, the thread's allocation with this number, counted from 0, fails.
  explicit FailingMemory(int64_t number);
  ~FailingMemory();
  bool has_failed() const;
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
};

// Calls try_it() until it succeeds; each call fails at another allocation, unless try_it() can do without
// that one. Calls after_failure() after each failure.
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
