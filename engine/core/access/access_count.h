// What accesses of one kind come to, of a phase or of all.
#pragma once

#include <cstdint>

#include "access/access.h"

namespace embstore {

struct AccessCount {
  Access access;
  int threads;  // that were at the tier's medium; TierMeter::kMostThreads: so many or more
  uint64_t accesses;
  uint64_t bytes;
  uint64_t elapsed_ns;
  uint64_t rounds = 1;  // that came one after the other; what is in one was in flight together
};

}  // namespace embstore
