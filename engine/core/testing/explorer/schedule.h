// One explored schedule: one or two small variables with rows in the emulated device's memory, and threads
// that look rows up, on streams and on the host, train, save, make checkpoints, drop, drain and close, all
// drawn from the seed. Some serial order of the operations must explain all that the threads saw, and each
// table must end in order.
#pragma once

#include <cstdint>
#include <string>

namespace embstore::explorer {

struct Explored {
  uint64_t trace;        // a hash of the schedule: what ran when, and what was seen
  uint64_t points;       // points at which threads could have been switched
  bool has_checkpoints;  // it made durable checkpoints
  bool has_checkpoints_of_partitions;
  bool has_steps_of_variables;  // steps that train several variables at once
};

// Explores the schedule of a seed. Calls fail() of testing/check.h, which names the seed, if something
// doesn't hold.
Explored explore(uint64_t seed);

// Returns the command that runs a seed again and prints its points.
std::string replay(uint64_t seed);

}  // namespace embstore::explorer
