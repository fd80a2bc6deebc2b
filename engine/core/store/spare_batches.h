// Keeps used batches for their memory, since fresh pages are slow. Memory beyond a limit goes back to the
// system, and no thread keeps any of its own.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "store/batch_in_flight.h"
#include "threads/mutex.h"

namespace embstore {

class SpareBatches {
 public:
  explicit SpareBatches(const RowLayout& layout) : layout_(layout) { batches_.reserve(kMax); }

  struct GiveBack {
    SpareBatches* spare = nullptr;
    void operator()(BatchInFlight* batch) const { spare->give_back(std::unique_ptr<BatchInFlight>(batch)); }
  };
  using Taken = std::unique_ptr<BatchInFlight, GiveBack>;

  // Returns an empty batch, which comes back here when its owner drops it. This outlives the batch.
  Taken take() {
    {
      MutexLock lock(mutex_);
      if (!batches_.empty()) {
        std::unique_ptr<BatchInFlight> batch = std::move(batches_.back());
        batches_.pop_back();
        bytes_ -= batch->memory_bytes();
        return {batch.release(), {this}};
      }
    }
    return {new BatchInFlight(layout_), {this}};
  }

 private:
  static constexpr size_t kMax = 32;
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  void give_back(std::unique_ptr<BatchInFlight> batch) {
    batch->clear();
    const size_t bytes = batch->memory_bytes();
    MutexLock lock(mutex_);
    if (batches_.size() == kMax || bytes_ + bytes > kMaxBytes) return;
    bytes_ += bytes;
    batches_.push_back(std::move(batch));
  }

  const RowLayout layout_;
  Mutex mutex_;
  std::vector<std::unique_ptr<BatchInFlight>> batches_ GUARDED_BY(mutex_);
  size_t bytes_ GUARDED_BY(mutex_) = 0;
};

using BatchPtr = SpareBatches::Taken;

}  // namespace embstore
