// The program's end, the last moment at which the power may go: data never flushed shows there.
#include <unistd.h>

#include <cstdlib>

#include "stand_in.h"

namespace {

void at_exit(void* caller) {
  powercut::Computer& computer = powercut::Computer::get();
  if (!computer.has_begun() || !computer.is_owner()) return;
  const powercut::Call call(computer, powercut::Kind::kExit, "exit", caller);
}

__attribute__((destructor)) void after_all_others() { at_exit(nullptr); }

}  // namespace

POWERCUT_EXPORT void _exit(int status) {
  POWERCUT_HIDDEN(_exit);
  at_exit(POWERCUT_CALLER);
  hidden_call(status);
  abort();
}
POWERCUT_EXPORT void _Exit(int status) noexcept {
  POWERCUT_HIDDEN(_Exit);
  at_exit(POWERCUT_CALLER);
  hidden_call(status);
  abort();
}
