// One explored schedule: a small variable or two with rows in the emulated device's memory, and threads that look rows up, on streams and
// on the host, train, save, make checkpoints, drop, drain and close, all drawn from the seed. Whatever they see has to be what
// some serial order of it gives, and each table has to end as one that is in order.
#pragma once

#include <cstdint>
#include <string>

namespace embstore::explorer {

struct Explored {
  uint64_t trace;        // tells the schedule from others, by what ran when and by what was seen
  uint64_t points;       // at which another thread could have gone on
  bool has_checkpoints;  // it made some that are durable
  bool has_checkpoints_of_partitions;
  bool has_steps_of_variables;  // of several, each as one
};

// Calls fail() of testing/check.h, which names the seed, where something doesn't hold.
Explored explore(uint64_t seed);

// What prints how a seed is run again.
std::string replay(uint64_t seed);

}  // namespace embstore::explorer
