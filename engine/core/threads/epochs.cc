#include "threads/epochs.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace embstore {
namespace {

// Numbers threads in the order in which they come, so that the threads of a pool begin their search at
// different cache lines.
size_t this_threads_number() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

// On the memory order: claims of participants, epochs, and the pointers that are unlinked before retire() are
// sequentially consistent. So either reclaim() sees a claim, or the claim came later, and its operation loads
// what replaced the unlinked pointer.

Epochs::~Epochs() {
  reclaim();
  for (std::atomic<Participant*>& block : further_blocks_) delete[] block.load();
}

Epochs::Participant& Epochs::participant(size_t i) const {
  if (i < kFirstBlock) return first_block_[i];
  const auto block = static_cast<size_t>(std::bit_width(i / kFirstBlock));
  return further_blocks_[block - 1].load(std::memory_order_acquire)[i - (kFirstBlock << (block - 1))];
}

Epochs::Guard Epochs::enter() {
  const size_t start = this_threads_number();
  for (size_t count = participants_.load();; count = grow(count)) {
    for (size_t i = 0; i < count; ++i) {
      Participant& participant = this->participant((start + i) & (count - 1));  // a power of two
      uint64_t idle = kIdle;
      // Storing an epoch that is already over only delays a free.
      if (participant.epoch.load(std::memory_order_relaxed) == kIdle &&
          participant.epoch.compare_exchange_strong(idle, epoch_.load())) {
        return Guard(*this, participant);
      }
    }
  }
}

size_t Epochs::grow(size_t count) {
  const auto block = static_cast<size_t>(std::countr_zero(count / kFirstBlock));
  if (block == kFurtherBlocks) throw std::bad_alloc();
  if (further_blocks_[block].load() == nullptr) {
    auto made = std::make_unique<Participant[]>(count);
    Participant* none = nullptr;
    if (further_blocks_[block].compare_exchange_strong(none, made.get())) (void)made.release();
  }
  // Before a thread can claim one of them, so that reclaim() looks at every claimed one.
  size_t before = count;
  participants_.compare_exchange_strong(before, 2 * count);
  return participants_.load();
}

void Epochs::leave(Participant& participant) noexcept {
  const uint64_t entered = participant.epoch.load(std::memory_order_relaxed);
  participant.epoch.store(kIdle);
  // Something was retired since this operation began, and it may be the last one that held it back.
  if (epoch_.load() != entered) reclaim();
}

void Epochs::refresh(Participant& participant) noexcept {
  const uint64_t entered = participant.epoch.load(std::memory_order_relaxed);
  const uint64_t now = epoch_.load();
  if (now == entered) return;
  participant.epoch.store(now);
  reclaim();
}

uint64_t Epochs::oldest_under_way(uint64_t enough) const {
  uint64_t oldest = epoch_.load();
  const size_t count = participants_.load();
  for (size_t i = 0; i < count && oldest > enough; ++i) {
    const uint64_t entered = participant(i).epoch.load();
    if (entered != kIdle) oldest = std::min(oldest, entered);
  }
  return oldest;
}

void Epochs::retire(std::unique_ptr<Retirable> object) noexcept {
  {
    const MutexLock lock(mutex_);
    object->retired_in_ = epoch_.fetch_add(1);
    Retirable*& link = oldest_retired_ == nullptr ? oldest_retired_ : newest_retired_->next_retired_;
    newest_retired_ = link = object.release();
  }
  reclaim();
}

void Epochs::reclaim() noexcept {
  Retirable* reclaimed = nullptr;
  {
    const MutexLock lock(mutex_);
    if (oldest_retired_ == nullptr) return;
    const uint64_t oldest = oldest_under_way(oldest_retired_->retired_in_);
    Retirable** link = &reclaimed;
    while (oldest_retired_ != nullptr && oldest_retired_->retired_in_ < oldest) {
      *link = oldest_retired_;
      link = &(*link)->next_retired_;
      oldest_retired_ = *link;
    }
    *link = nullptr;
  }
  // Outside the lock: freeing an array of gigabytes takes milliseconds.
  while (reclaimed != nullptr) {
    delete std::exchange(reclaimed, reclaimed->next_retired_);
  }
}

void Epochs::wait_until_idle() const {
  const size_t count = participants_.load();
  for (size_t i = 0; i < count; ++i) {
    while (participant(i).epoch.load() != kIdle) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace embstore
