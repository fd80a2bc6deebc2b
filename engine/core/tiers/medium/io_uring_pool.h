// The process's io_uring readers. A ring takes a descriptor and kernel memory, and a few rings keep a device
// busy, however many tables and threads there are. Idle rings are closed if descriptors run out. A forked
// child makes its own: if two processes used one ring, each would get the other's completions.
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

  // A borrowed reader; the destructor gives it back.
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

  // Borrows a reader; waits if all are lent. REQUIRES: the caller has none. Throws Error(kStorage) if the
  // first reader can't be made.
  Loan borrow();

 private:
  static size_t max_readers();
  void give_back(std::unique_ptr<BatchReader> reader);

  Mutex mutex_;
  Condition given_back_;
  std::vector<std::unique_ptr<BatchReader>> idle_ GUARDED_BY(mutex_);
  size_t readers_ GUARDED_BY(mutex_) = 0;  // idle or lent
};

}  // namespace embstore::medium
