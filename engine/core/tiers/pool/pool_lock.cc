#include "tiers/pool/pool_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "threads/mutex.h"

namespace embstore::pool {
namespace {

// Of one process. A forked child makes its own: what it inherited speaks of its parent's, and may be locked for ever.
struct HeldLocks {
  const ForkGeneration made_in = fork_generation();
  Mutex mutex;
  std::set<std::pair<dev_t, ino_t>> files GUARDED_BY(mutex);
};

HeldLocks& held_locks() {
  static std::atomic<HeldLocks*> current{nullptr};
  HeldLocks* locks = current.load(std::memory_order_acquire);
  while (locks == nullptr || inherited(locks->made_in)) {
    auto* const fresh = new HeldLocks;  // for as long as the process lives
    if (current.compare_exchange_strong(locks, fresh)) return *fresh;
    delete fresh;
  }
  return *locks;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what, int reason) {
  throw Error(ErrorKind::kStorage, path + ": " + what + ": " + std::generic_category().message(reason));
}

}  // namespace

PoolLock::PoolLock(const std::string& path, const std::string& pool) {
  HeldLocks& held = held_locks();
  const MutexLock lock(held.mutex);
  // Before it's opened: closing any descriptor of the file would give up the lock that another variable has.
  struct stat status{};
  if (stat(path.c_str(), &status) == 0 && held.files.contains({status.st_dev, status.st_ino})) {
    throw InUseError(pool);
  }
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) refuse(path, "can't be created", errno);
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(descriptor_, F_SETLK, &whole) != 0 || fstat(descriptor_, &status) != 0) {
    const int reason = errno;
    ::close(descriptor_);
    if (reason == EACCES || reason == EAGAIN) throw InUseError(pool);
    refuse(path, "can't be locked", reason);
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  held.files.emplace(device_, inode_);
}

PoolLock::~PoolLock() {
  // To close it would give up a lock that the child itself may have taken since.
  if (inherited(made_in_)) return;
  HeldLocks& held = held_locks();
  const MutexLock lock(held.mutex);
  ::close(descriptor_);
  held.files.erase({device_, inode_});
}

}  // namespace embstore::pool
