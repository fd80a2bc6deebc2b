// What a thread's accesses would have taken longer on the devices of its tiers: waited for at its next safe point.
//
// What is too short to sleep for is carried on, and what a sleep took too long counts for the next.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "access/shared_medium.h"

namespace embstore {

// This thread owes it; it waits at a safe point.
void owe_wait(const std::shared_ptr<SharedMedium>& medium, double wait_ns);
// Waits, if that is long enough to sleep for. The thread counts as being at the medium meanwhile.
// REQUIRES: it holds no lock that others need.
void wait_as_owed() noexcept;

// The scope in which this thread doesn't wait: a caller of ours holds a lock.
class PutWaitsOff {
 public:
  PutWaitsOff();
  ~PutWaitsOff();
  PutWaitsOff(const PutWaitsOff&) = delete;
  PutWaitsOff& operator=(const PutWaitsOff&) = delete;
};

}  // namespace embstore
