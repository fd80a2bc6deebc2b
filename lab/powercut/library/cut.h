// The power goes: chooses what of all that waits has reached the medium, and leaves a description of it.
#pragma once

#include <string>

#include "call_stack.h"
#include "computer.h"

namespace powercut {

struct Moment {
  uint64_t point;  // the number of calls until then
  const char* kind;
  const char* function;
  const CallStack& stack;
};

// Writes `cut.json` and `cut.pages` into the session's folder: the files are the program's view until whoever
// runs the program changes them, when it's dead. A thread that goes on for a moment longer does no harm: each
// of its stores could have reached the medium as well, and none of its calls gets through.
void describe_cut(Computer& computer, const Moment& moment);

}  // namespace powercut
