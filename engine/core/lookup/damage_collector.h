// Collects the rows of one batch that can't be read, from several threads that read parts of it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"
#include "threads/mutex.h"

namespace embstore {

class DamageCollector {
 public:
  // Calls work(), and keeps the DamagedRowsError that it throws, if any.
  template <class Work>
  void collect(const Work& work) {
    try {
      work();
    } catch (const DamagedRowsError& error) {
      const MutexLock lock(mutex_);
      keys_.insert(keys_.end(), error.keys().begin(), error.keys().end());
      if (!first_reason_) first_reason_ = error.first_reason();
    }
  }
  // Throws one error with all damaged rows, if there are any. REQUIRES: no thread collects any
  // more.
  void throw_if_any() {
    const MutexLock lock(mutex_);
    if (!first_reason_) return;
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    throw DamagedRowsError(std::move(keys_), *first_reason_);
  }

 private:
  Mutex mutex_;
  std::vector<int64_t> keys_ GUARDED_BY(mutex_);
  std::optional<std::string> first_reason_ GUARDED_BY(mutex_);
};

}  // namespace embstore
