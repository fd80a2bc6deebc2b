#include "complaint.h"

#include "system_calls.h"

namespace powercut {

void complain(const std::string& session, const std::string& what) {
  const std::string line = "powercut: " + what + "\n";
  system_calls::write_all(STDERR_FILENO, line.data(), line.size());
  const int file = system_calls::open((session + "/complaint").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file >= 0) system_calls::write_all(file, what.data(), what.size());
  syscall(SYS_exit_group, 125);
  abort();
}

}  // namespace powercut
