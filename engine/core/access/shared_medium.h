// What rows of one or several tiers lie on, as far as threads get in each other's way there.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace embstore {

class SharedMedium {
 public:
  // The one of this name that any tier of the process has, or a new one.
  static std::shared_ptr<SharedMedium> named(const std::string& name);

  // Both return how many threads are at it, this one included.
  int enter() { return threads_.fetch_add(1, std::memory_order_relaxed) + 1; }
  int leave() { return threads_.fetch_sub(1, std::memory_order_relaxed); }
  int threads() const { return threads_.load(std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<int> threads_{0};
};

}  // namespace embstore
