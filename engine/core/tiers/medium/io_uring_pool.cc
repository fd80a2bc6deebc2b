#include "tiers/medium/io_uring_pool.h"

#include <algorithm>
#include <utility>

#include "errors/error.h"
#include "files/descriptor_cache.h"
#include "platform/process_local.h"

namespace embstore::medium {

IoUringPool& IoUringPool::of_process() { return ProcessLocal<IoUringPool>::get(); }

size_t IoUringPool::max_readers() {
  constexpr size_t kMax = 32;
  return std::clamp<size_t>(files::DescriptorCache::limit() / 4, 1, kMax);
}

IoUringPool::Loan IoUringPool::borrow() {
  const MutexLock lock(mutex_);
  for (;;) {
    if (!idle_.empty()) {
      Loan loan(*this, std::move(idle_.back()));
      idle_.pop_back();
      return loan;
    }
    if (readers_ < max_readers()) {
      idle_.reserve(readers_ + 1);  // so that give_back() can't fail
      try {
        Loan loan(*this, make_io_uring_reader());
        ++readers_;
        return loan;
      } catch (const Error&) {
        if (readers_ == 0) throw;
      }
    }
    given_back_.wait(mutex_);
  }
}

void IoUringPool::give_back(std::unique_ptr<BatchReader> reader) {
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(reader));
  given_back_.notify_one();
}

}  // namespace embstore::medium
