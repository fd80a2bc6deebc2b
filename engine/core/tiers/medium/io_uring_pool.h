// The process's io_uring readers. A ring is a descriptor and memory of the kernel, and a few of them keep a
// device busy, however many tables and threads there are. Idle ones give way where descriptors run out. A forked child
// makes its own: a ring that two processes used would give each the other's completions.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "threads/mutex.h"
#include "tiers/medium/batch_reader.h"

namespace embstore::medium {

class IoUringPool {
 public:
  static IoUringPool& of_process();

  // One of them, given back in the end.
  class Loan {
   public:
    Loan(IoUringPool& pool, std::unique_ptr<BatchReader> reader) : pool_(&pool), reader_(std::move(reader)) {}
    ~Loan() {
      if (reader_ != nullptr) pool_->give_back(std::move(reader_));
    }
    Loan(Loan&&) noexcept = default;
    Loan& operator=(Loan&&) = delete;
    BatchReader& operator*() const { return *reader_; }

   private:
    IoUringPool* pool_;
    std::unique_ptr<BatchReader> reader_;
  };

  // Waits until one is idle where all are lent. REQUIRES: the caller has none. Throws Error(kStorage) where
  // the first one can't be made.
  Loan borrow();

 private:
  static size_t most_readers();
  void give_back(std::unique_ptr<BatchReader> reader);

  Mutex mutex_;
  Condition given_back_;
  std::vector<std::unique_ptr<BatchReader>> idle_ GUARDED_BY(mutex_);
  size_t readers_ GUARDED_BY(mutex_) = 0;  // idle or lent
};

}  // namespace embstore::medium
