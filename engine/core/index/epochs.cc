#include "index/epochs.h"

#include <algorithm>
#include <functional>
#include <thread>

namespace embstore {

// Sequentially consistent throughout: the pointers that an operation loads next must not be loaded before
// its claim can be seen. An epoch that is already over when it's stored only delays a free.
Epochs::Guard Epochs::enter() { return enter_at(epoch_.load()); }

Epochs::Guard Epochs::extend(const Guard& guard) {
  return enter_at(guard.participant_->epoch.load());
}

Epochs::Guard Epochs::enter_at(uint64_t epoch) {
  const size_t start = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (;;) {
    for (size_t i = 0; i < kMaxOperations; ++i) {
      Participant& participant = participants_[(start + i) % kMaxOperations];
      uint64_t idle = kIdle;
      if (participant.epoch.load(std::memory_order_relaxed) == kIdle &&
          participant.epoch.compare_exchange_strong(idle, epoch)) {
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

bool Epochs::is_idle() const {
  return std::all_of(participants_.begin(), participants_.end(),
                     [](const Participant& participant) { return participant.epoch.load() == kIdle; });
}

}  // namespace embstore
