// Objects that exist once per process.
#pragma once

#include <atomic>
#include <memory>

#include "platform/fork.h"

namespace embstore {

// The process's T. A forked child gets a T of its own: another thread may have held a lock of the parent's T
// at the fork, and what that T refers to may be gone, or still belong to the parent.
template <class T>
class ProcessLocal {
 public:
  // Returns the T, which the first call makes. Takes no lock, which a fork could leave held: if several
  // threads make a T at the same time, one of these is kept. The T is never destroyed, since other objects
  // may outlive main().
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
