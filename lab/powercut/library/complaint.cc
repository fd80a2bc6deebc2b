#include "complaint.h"

#include "system_calls.h"

namespace powercut {

void complain(const std::string& session, const std::string& what) {
  const std::string line = "powercut: " + what + "\n";
  system_calls::write_all(STDERR_FILENO, line.data(), line.size());
  system_calls::write_file(session + "/complaint", what);
  syscall(SYS_exit_group, 125);
  abort();
}

}  // namespace powercut
