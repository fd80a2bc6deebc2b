#include "files/path_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "errors/error.h"
#include "files/file_error.h"
#include "threads/mutex.h"

namespace embstore::files {

// Locks are flock()s. A record lock (fcntl) isn't inherited by forked children, but it is released when the
// process closes any descriptor of the file, for example of a copy's source, and it doesn't exclude the
// process's other variables. flock() lacks one thing, which is added here: a child closes the inherited
// descriptors within fork(), so that the lock ends with the parent. The mutex keeps fork() from running
// between a file's opening and its entry in this list.
struct HeldLocks {
  static constinit Mutex mutex;
  static constinit PathLock* first GUARDED_BY(mutex);

  static void add(PathLock& lock) REQUIRES(mutex) {
    lock.next_ = first;
    if (first != nullptr) first->previous_ = &lock;
    first = &lock;
  }
  static void remove(const PathLock& lock) REQUIRES(mutex) {
    (lock.previous_ == nullptr ? first : lock.previous_->next_) = lock.next_;
    if (lock.next_ != nullptr) lock.next_->previous_ = lock.previous_;
  }

  static void before_fork() ACQUIRE(mutex) { mutex.lock(); }
  static void in_parent() RELEASE(mutex) { mutex.unlock(); }
  static void in_child() RELEASE(mutex) {
    for (const PathLock* lock = first; lock != nullptr; lock = lock->next_) ::close(lock->descriptor_);
    first = nullptr;
    mutex.unlock();
  }
};

constinit Mutex HeldLocks::mutex;
constinit PathLock* HeldLocks::first = nullptr;

namespace {

const bool told_of_forks = run_at_forks(HeldLocks::before_fork, HeldLocks::in_parent, HeldLocks::in_child);

// Returns whether the path still leads to the file: the previous owner may have removed it after it was
// opened.
bool is_at(const std::string& path, int descriptor) {
  struct stat opened{}, named{};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

PathLock::PathLock(std::string lock_path, const std::string& path, bool stays)
    : lock_path_(std::move(lock_path)), stays_(stays) {
  const MutexLock lock(HeldLocks::mutex);
  for (;;) {
    descriptor_ = ::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, stays_ ? 0666 : 0600);
    if (descriptor_ < 0) throw FileError(lock_path_, "can't be created", errno);
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      ::close(descriptor_);
      if (reason == EWOULDBLOCK) throw InUseError(path);
      throw FileError(lock_path_, "can't be locked", reason);
    }
    if (is_at(lock_path_, descriptor_)) break;
    ::close(descriptor_);
  }
  HeldLocks::add(*this);
}

void PathLock::release() {
  if (inherited(made_in_)) return;  // closed by in_child()
  const MutexLock lock(HeldLocks::mutex);
  if (descriptor_ < 0) return;
  HeldLocks::remove(*this);
  // Removed while it is locked: otherwise this could remove the next owner's file.
  if (!stays_ && is_at(lock_path_, descriptor_)) ::unlink(lock_path_.c_str());
  // A child that was just forked may still have the descriptor for a moment, so closing alone would leave it
  // the lock.
  flock(descriptor_, LOCK_UN);
  ::close(std::exchange(descriptor_, -1));
}

}  // namespace embstore::files
