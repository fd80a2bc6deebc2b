// The medium of one or several tiers, as far as threads slow each other down there.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace embstore {

class SharedMedium {
 public:
  // Returns the medium of this name that another tier of the process has, or a new one.
  static std::shared_ptr<SharedMedium> named(const std::string& name);

  // Both return how many threads are at the medium, the caller included.
  int enter() { return threads_.fetch_add(1, std::memory_order_relaxed) + 1; }
  int leave() { return threads_.fetch_sub(1, std::memory_order_relaxed); }
  int threads() const { return threads_.load(std::memory_order_relaxed); }

 private:
  alignas(64) std::atomic<int> threads_{0};
};

}  // namespace embstore
