// Splits a batch of gradients into shares that threads group and update in parallel. Each share has the keys
// of some shards of the index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "threads/shared_work.h"
#include "update/gradient_batch.h"

namespace embstore {

class BatchShares {
 public:
  // Returns the number of shares that pay for a batch of `ids` ids, if a share should have at least
  // `min_ids`.
  static size_t worthwhile(size_t ids, size_t min_ids);

  BatchShares(const GradientBatch::Gradients& gradients, size_t count);
  ~BatchShares();
  BatchShares(const BatchShares&) = delete;
  BatchShares& operator=(const BatchShares&) = delete;

  size_t count() const { return shares_.size(); }
  const GradientBatch& share(size_t number) const { return *shares_[number]; }
  size_t key_count() const;
  bool is_finite() const;
  // Keeps the share's buffers for the calling thread's next batch.
  void recycle(size_t number);

  // Calls work(number) for each share, on all threads that are idle.
  template <class Work>
  void for_each(const Work& work) const {
    for_each_piece(count(), count(), work);
  }

 private:
  std::vector<std::unique_ptr<GradientBatch>> shares_;
};

}  // namespace embstore
