// The number, bytes and time of one kind of access: in one phase, or since the tier was made.
#pragma once

#include <cstdint>

#include "access/access.h"

namespace embstore {

struct AccessCount {
  Access access;
  int threads;  // at the tier's medium; TierMeter::kMaxThreads means that many or more
  uint64_t accesses;
  uint64_t bytes;
  uint64_t elapsed_ns;
  uint64_t rounds = 1;  // rounds run one after the other; the accesses of one round are in flight together
};

}  // namespace embstore
