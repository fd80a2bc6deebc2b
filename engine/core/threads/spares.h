// Things that nobody uses just now, for whoever needs one next: it takes long to make one, or its memory would be fresh pages.
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

  // One of them, or what make() gives where there is none.
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
  // What is too much is freed.
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
