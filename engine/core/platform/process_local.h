// Objects of which a process has one.
#pragma once

#include <atomic>
#include <memory>

#include "platform/fork.h"

namespace embstore {

// The process's T. A forked child gets a T of its own: another thread may have held a lock of the parent's at the fork,
// and what the parent's T refers to may be gone, or the parent's still.
template <class T>
class ProcessLocal {
 public:
  // Makes it at the first call, without a lock, which a fork could leave held: of several threads that make one at the
  // same time, one thread's stays. It's never destroyed: others may outlive what main() leaves behind.
  static T& get() {
    static constinit std::atomic<Made*> current{nullptr};
    Made* found = current.load(std::memory_order_acquire);
    while (found == nullptr || inherited(found->in)) {
      auto made = std::make_unique<Made>();
      if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel))
        found = made.release();
    }
    return found->value;
  }

 private:
  struct Made {
    const ForkGeneration in = fork_generation();
    T value;
  };
};

}  // namespace embstore
