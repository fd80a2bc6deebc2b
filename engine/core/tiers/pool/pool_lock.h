// The right to use a pool: one process's, and one variable's in it.
#pragma once

#include <sys/types.h>

#include <string>

#include "platform/fork.h"

namespace embstore::pool {

// A record lock on a file that stays where it is. A forked child doesn't inherit it, so it ends with the process that
// took it, whatever children live on. It doesn't keep that process itself out: a list of those that are held does.
class PoolLock {
 public:
  // `pool` names the pool that an InUseError names.
  PoolLock(const std::string& path, const std::string& pool);
  ~PoolLock();
  PoolLock(const PoolLock&) = delete;
  PoolLock& operator=(const PoolLock&) = delete;

 private:
  const ForkGeneration made_in_ = fork_generation();
  int descriptor_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace embstore::pool
