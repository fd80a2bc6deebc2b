// The waits that a thread owes: the time by which its accesses would have taken longer on the devices of its
// tiers. The thread waits at its next safe point.
//
// A time that is too short to sleep for is carried over, and so is the time by which a sleep took too long.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "access/shared_medium.h"

namespace embstore {

// Adds a wait to those that this thread owes; the thread waits at a safe point.
void add_pacing_wait(const std::shared_ptr<SharedMedium>& medium, double wait_ns);
// Waits for what this thread owes, if that is long enough to sleep for. The thread counts as being at the
// medium meanwhile. REQUIRES: it holds no lock that other threads need.
void pay_pacing_debt() noexcept;

// The scope in which this thread doesn't wait, since a caller of the engine holds a lock.
class PacingSuspension {
 public:
  PacingSuspension();
  ~PacingSuspension();
  PacingSuspension(const PacingSuspension&) = delete;
  PacingSuspension& operator=(const PacingSuspension&) = delete;
};

}  // namespace embstore
