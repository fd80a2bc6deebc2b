#include "movement/right_to_move.h"

#include <utility>

namespace embstore {

void RightToMove::lock() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  wait_for_turn(/*waits_for_pauses=*/true);
}

bool RightToMove::try_lock() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  // While threads wait, the right goes from one to the next.
  return !std::exchange(is_held_, true);
}

void RightToMove::unlock() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  hand_over();
}

void RightToMove::lock_for_pause() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  ++pauses_;
  for (Waiter** link = &first_waiter_; *link != nullptr;) {
    Waiter& waiter = **link;
    if (waiter.waits_for_pauses) {
      link = &waiter.next;
      continue;
    }
    *link = waiter.next;
    waiter.turn = Turn::kIsRefused;
    waiter.turned.notify_one();
  }
  wait_for_turn(/*waits_for_pauses=*/true);
}

void RightToMove::unlock_after_pause() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  --pauses_;
  hand_over();
}

bool RightToMove::lock_unless_paused() NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock lock(mutex_);
  return pauses_ == 0 && wait_for_turn(/*waits_for_pauses=*/false);
}

bool RightToMove::wait_for_turn(bool waits_for_pauses) {
  if (!std::exchange(is_held_, true)) return true;
  Waiter waiter(waits_for_pauses);
  Waiter** link = &first_waiter_;
  while (*link != nullptr) link = &(*link)->next;
  *link = &waiter;
  while (waiter.turn == Turn::kWaits) waiter.turned.wait(mutex_);
  return waiter.turn == Turn::kHasCome;
}

void RightToMove::hand_over() {
  if (first_waiter_ == nullptr) {
    is_held_ = false;
    return;
  }
  Waiter& next = *std::exchange(first_waiter_, first_waiter_->next);
  next.turn = Turn::kHasCome;
  next.turned.notify_one();
}

size_t RightToMove::waiting_threads() const {
  const MutexLock lock(mutex_);
  size_t threads = 0;
  for (const Waiter* waiter = first_waiter_; waiter != nullptr; waiter = waiter->next) ++threads;
  return threads;
}

}  // namespace embstore
