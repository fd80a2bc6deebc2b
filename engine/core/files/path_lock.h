// Ownership of a path by one variable of one process.
#pragma once

#include <string>

#include "platform/fork.h"

namespace embstore::files {

// Owns a path by a lock on a file. A forked child neither keeps nor gives up what it inherited, and may own
// the path itself when the parent no longer does.
class PathLock {
 public:
  // Locks the file `PATH.lock`, which exists while the path has an owner; the path itself may come and go.
  // Throws InUseError if another PathLock, here or in another process, has the path; Error(kStorage).
  explicit PathLock(const std::string& path) : PathLock(path + ".lock", path, /*stays=*/false) {}
  // Locks a file that stays, and that other users of the system may lock, too, if the umask lets them.
  PathLock(const std::string& lock_path, const std::string& path)
      : PathLock(lock_path, path, /*stays=*/true) {}
  ~PathLock() { release(); }
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;

  // Does nothing if called again.
  void release();

 private:
  friend struct HeldLocks;

  PathLock(std::string lock_path, const std::string& path, bool stays);

  const std::string lock_path_;
  const bool stays_;
  const ForkGeneration made_in_ = fork_generation();
  int descriptor_ = -1;
  // Neighbours in the list of locks that the process holds.
  PathLock* previous_ = nullptr;
  PathLock* next_ = nullptr;
};

}  // namespace embstore::files
