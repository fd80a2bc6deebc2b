// Ids that serving look-ups read, kept until a thread has time to count them: a look-up pays for one
// sequential copy of its ids instead of a cache miss a row.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace embstore {

class AccessLog {
 public:
  struct Batch {
    uint64_t first_stamp;  // that of ids[0]; the others' follow
    std::vector<int64_t> ids;
    std::vector<uint32_t> excepted;  // positions, ascending, of ids that aren't to be counted
  };

  // Returns how many ids are waiting now.
  size_t append(uint64_t first_stamp, std::span<const int64_t> ids,
                std::span<const uint32_t> excepted) {
    Batch batch = recycled();
    batch.first_stamp = first_stamp;
    batch.ids.assign(ids.begin(), ids.end());
    batch.excepted.assign(excepted.begin(), excepted.end());
    const std::lock_guard lock(mutex_);
    waiting_ids_ += ids.size();
    waiting_.push_back(std::move(batch));
    return waiting_ids_;
  }

  std::vector<Batch> take() {
    const std::lock_guard lock(mutex_);
    waiting_ids_ = 0;
    return std::exchange(waiting_, {});
  }

  // Keeps the buffers of batches that were counted for later ones.
  void recycle(std::vector<Batch>&& batches) {
    constexpr size_t kMostSpare = 16;
    const std::lock_guard lock(mutex_);
    for (Batch& batch : batches) {
      if (spare_.size() == kMostSpare) return;
      spare_.push_back(std::move(batch));
    }
  }

  bool empty() const {
    const std::lock_guard lock(mutex_);
    return waiting_.empty();
  }

 private:
  Batch recycled() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return {};
    Batch batch = std::move(spare_.back());
    spare_.pop_back();
    return batch;
  }

  mutable std::mutex mutex_;
  std::vector<Batch> waiting_;  // guarded by mutex_
  std::vector<Batch> spare_;    // guarded by mutex_
  size_t waiting_ids_ = 0;      // guarded by mutex_
};

}  // namespace embstore
