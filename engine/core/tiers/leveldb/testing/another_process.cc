#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing/check.h"
#include "tiers/leveldb/testing/testing.h"

namespace embstore {

AnotherProcess::AnotherProcess(const std::vector<std::string>& arguments) {
  int to_child[2], to_parent[2];
  check(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(to_parent, O_CLOEXEC) == 0, "pipes can be made");
  std::vector<std::string> all = arguments;
  all.insert(all.begin(), "leveldb_tier_test");
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  child_ = fork();
  if (child_ == 0) {
    dup2(to_child[0], STDIN_FILENO);
    dup2(to_parent[1], STDOUT_FILENO);
    execv("/proc/self/exe", pointers.data());
    _exit(127);
  }
  close(to_child[0]);
  close(to_parent[1]);
  stdin_ = to_child[1];
  stdout_ = to_parent[0];
}

bool AnotherProcess::answers() const {
  char byte = 0;
  return ::read(stdout_, &byte, 1) == 1;
}

void AnotherProcess::end() {
  close(stdin_);
  int status = 0;
  check(waitpid(child_, &status, 0) == child_ && status == 0, "another process failed");
  close(stdout_);
}

}  // namespace embstore
