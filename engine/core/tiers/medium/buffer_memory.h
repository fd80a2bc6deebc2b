// Memory of buffers that no reader is in any more, for the next ones: fresh pages are slow.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "threads/mutex.h"
#include "tiers/medium/aligned_bytes.h"

namespace embstore::medium {

class BufferMemory {
 public:
  explicit BufferMemory(size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  AlignedBytes take() {
    {
      const MutexLock lock(mutex_);
      if (!spare_.empty()) {
        AlignedBytes bytes = std::move(spare_.back());
        spare_.pop_back();
        return bytes;
      }
    }
    return AlignedBytes(buffer_bytes_);
  }
  void give_back(AlignedBytes bytes) {
    const MutexLock lock(mutex_);
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(bytes));
  }

 private:
  static constexpr size_t kMaxSpare = 2;
  const size_t buffer_bytes_;
  Mutex mutex_;
  std::vector<AlignedBytes> spare_ GUARDED_BY(mutex_);
};

}  // namespace embstore::medium
