// Cuts the power: chooses which of the pending changes have reached the medium, and describes them.
#pragma once

#include <string>

#include "call_stack.h"
#include "computer.h"

namespace powercut {

struct Moment {
  uint64_t point;  // the number of calls so far
  const char* kind;
  const char* function;
  const CallStack& stack;
};

// Writes `cut.json` and `cut.pages` into the session's folder. The files themselves stay as the program sees
// them until its parent changes them, after its death. A thread that goes on for a moment does no harm: each
// of its stores could have reached the medium as well, and none of its calls gets through.
void describe_cut(Computer& computer, const Moment& moment);

}  // namespace powercut
