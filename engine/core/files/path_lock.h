// The owner of a path: one variable of one process.
#pragma once

#include <string>

#include "platform/fork.h"

namespace embstore::files {

// Owns a path, which may come and go meanwhile, by a lock on the file `PATH.lock` beside it. A forked child neither
// keeps nor gives up what it inherited, and may own the path itself when the parent no longer does.
class PathLock {
 public:
  // Throws InUseError where another PathLock, here or in another process, has the path; Error(kStorage).
  explicit PathLock(const std::string& path);
  // Removes the lock's file.
  ~PathLock();
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;

 private:
  friend struct HeldLocks;

  const std::string lock_path_;
  const ForkGeneration made_in_ = fork_generation();
  int descriptor_ = -1;
  // Among the locks that the process holds.
  PathLock* previous_ = nullptr;
  PathLock* next_ = nullptr;
};

}  // namespace embstore::files
