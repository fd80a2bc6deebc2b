#include "threads/epochs.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace embstore {

Epochs::Guard Epochs::enter() {
  const size_t start = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (;;) {
    for (size_t i = 0; i < kMaxOperations; ++i) {
      Participant& participant = participants_[(start + i) % kMaxOperations];
      uint64_t idle = kIdle;
      // Sequentially consistent: the pointers that this operation loads next must not be loaded before
      // the claim can be seen. An epoch that is already over when it's stored only delays a free.
      if (participant.epoch.load(std::memory_order_relaxed) == kIdle &&
          participant.epoch.compare_exchange_strong(idle, epoch_.load())) {
        return Guard(participant);
      }
    }
    std::this_thread::yield();
  }
}

void Epochs::retire(std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  retired_.push_back({epoch_.fetch_add(1), std::move(object)});
  uint64_t oldest = epoch_.load();
  for (const Participant& participant : participants_) {
    const uint64_t entered = participant.epoch.load();
    if (entered != kIdle) oldest = std::min(oldest, entered);
  }
  std::erase_if(retired_, [oldest](const Retired& retired) { return retired.epoch < oldest; });
}

void Epochs::wait_until_idle() const {
  for (const Participant& participant : participants_) {
    while (participant.epoch.load() != kIdle) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

}  // namespace embstore
