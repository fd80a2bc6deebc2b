// Keeps unused objects for the next user, because they take long to make, or their memory would be fresh
// pages.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "threads/mutex.h"

namespace embstore {

template <class T>
class Spares {
 public:
  explicit Spares(size_t most) : most_(most) { spare_.reserve(most); }

  // Returns a spare object, or make() if there is none.
  template <class Make>
  T take_or(Make make) EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!spare_.empty()) {
        T spare = std::move(spare_.back());
        spare_.pop_back();
        return spare;
      }
    }
    return make();
  }
  // Keeps the object; frees it if there are enough.
  void give_back(T spare) noexcept EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (spare_.size() < most_) spare_.push_back(std::move(spare));
  }

 private:
  const size_t most_;
  Mutex mutex_;
  std::vector<T> spare_ GUARDED_BY(mutex_);
};

}  // namespace embstore
