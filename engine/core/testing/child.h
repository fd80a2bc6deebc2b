// Starts forked processes of a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "testing/check.h"

namespace embstore {

// Starts a process that does `work`, and ends with status 0 if that returns.
template <class Work>
pid_t start_child(const Work& work) {
  const pid_t child = fork();
  check(child >= 0, "no process can be started");
  if (child != 0) return child;
  work();
  _exit(0);
}

// Waits for the end of a child, and returns its exit code, or minus the signal that ended it.
inline int end_of_child(pid_t child) {
  int status = 0;
  check(waitpid(child, &status, 0) == child, "a process is lost");
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Fails unless a child can do `work`.
template <class Work>
void in_child(const Work& work) {
  check(end_of_child(start_child(work)) == 0, "a process failed");
}

}  // namespace embstore
