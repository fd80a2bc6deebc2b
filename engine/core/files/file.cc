#include "files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "access/phase.h"

namespace embstore::files {

FileError::FileError(const std::string& path, const std::string& what, int reason)
    : Error(ErrorKind::kStorage, path + ": " + what + ": " + std::generic_category().message(reason)),
      reason_(reason) {}

File::File(FileCalls& calls, std::string path, int flags, const FileUse& use)
    : calls_(calls), path_(std::move(path)), flags_(flags | O_CLOEXEC), use_(use) {
  open();
}

File::~File() { forget(); }

int File::open_descriptor() const {
  // The path may be that of a FIFO, whose open would wait for another process.
  const int number = calls_.open(path_.c_str(), flags_ | O_NONBLOCK, use_.mode);
  if (number < 0) {
    const int reason = errno;
    if (reason == EINVAL && (flags_ & O_DIRECT) != 0) {
      throw FileError(path_,
                      "this file system has no O_DIRECT; choose another path, or don't ask for direct I/O",
                      reason);
    }
    throw FileError(path_, (flags_ & O_CREAT) != 0 ? "can't be created" : "can't be opened", reason);
  }
  if (struct stat opened{}; fstat(number, &opened) == 0 && S_ISFIFO(opened.st_mode)) {
    calls_.close(number);
    throw FileError(path_, "is a FIFO, not a file; remove it", ESPIPE);
  }
  flags_ &= ~(O_CREAT | O_EXCL | O_TRUNC);
  if (use_.pattern == AccessPattern::kRandom) posix_fadvise(number, 0, 0, POSIX_FADV_RANDOM);
  if (use_.pattern == AccessPattern::kSequential) posix_fadvise(number, 0, 0, POSIX_FADV_SEQUENTIAL);
  return number;
}

void File::close_descriptor(int number) const { calls_.close(number); }

bool File::must_sync_before_close() const {
  return use_.for_the_medium && unsynced_.load(std::memory_order_acquire) && !sync_failed();
}

void File::sync_before_close() const { sync_descriptor(pin().number()); }

int File::sync_descriptor(int number) const {
  const MutexLock lock(sync_mutex_);
  return sync_locked(number);
}

int File::sync_locked(int number) const {
  if (sync_failed()) return sync_errno_.load(std::memory_order_relaxed);
  unsynced_.store(false, std::memory_order_release);
  for (;;) {
    if (calls_.fdatasync(number) == 0) return 0;
    if (errno == EINTR) continue;
    const int reason = errno;
    sync_errno_.store(reason, std::memory_order_release);
    return reason;
  }
}

void File::check_sync_succeeded() const {
  const int reason = sync_errno_.load(std::memory_order_acquire);
  if (reason == 0) return;
  throw FileError(path_,
                  "what was written is in doubt, since it couldn't be brought to the medium, and only a new "
                  "file can take its place",
                  reason);
}

size_t File::read_at(void* data, size_t bytes, uint64_t offset) const {
  std::optional<Phase> phase;
  if (use_.meter != nullptr) phase.emplace(*use_.meter).count(Access::kFileRead, 1, bytes);
  return read_uncounted(data, bytes, offset);
}

size_t File::read_uncounted(void* data, size_t bytes, uint64_t offset) const {
  const Pin pinned = pin();
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = calls_.pread(pinned.number(), static_cast<char*>(data) + done, bytes - done,
                                     static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      const int reason = errno;
      throw FileError(path_, "can't read " + std::to_string(bytes) + " bytes at " + std::to_string(offset),
                      reason);
    }
  }
  return done;
}

void File::write_at(const void* data, size_t bytes, uint64_t offset) {
  check_sync_succeeded();
  std::optional<Phase> phase;
  if (use_.meter != nullptr) phase.emplace(*use_.meter).count(Access::kFileWrite, 1, bytes);
  const Pin pinned = pin();
  size_t done = 0;
  while (done < bytes) {
    const ssize_t put = calls_.pwrite(pinned.number(), static_cast<const char*>(data) + done, bytes - done,
                                      static_cast<off_t>(offset + done));
    const int reason = put == 0 ? ENOSPC : errno;
    // Set after each write, while the file is pinned: a sync under way may have missed it.
    unsynced_.store(true, std::memory_order_release);
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (put == 0 || reason != EINTR) {
      throw FileError(path_, "can't write " + std::to_string(bytes) + " bytes at " + std::to_string(offset),
                      reason);
    }
  }
}

void File::sync() {
  check_sync_succeeded();
  const Pin pinned = pin();
  const int reason = sync_descriptor(pinned.number());
  if (reason != 0) throw FileError(path_, "can't be brought to its medium", reason);
}

void File::sync_if_written() {
  check_sync_succeeded();
  const Pin pinned = pin();
  int reason = 0;
  {
    // Waits for a sync that is under way: the writes that it brings to the medium already count as
    // synced (unsynced_ is false).
    const MutexLock lock(sync_mutex_);
    reason = sync_errno_.load(std::memory_order_relaxed);
    if (reason == 0 && unsynced_.load(std::memory_order_acquire)) reason = sync_locked(pinned.number());
  }
  if (reason != 0) throw FileError(path_, "can't be brought to its medium", reason);
}

void File::rename_to(std::string path) {
  if (calls_.rename(path_.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    throw FileError(path_, "can't be renamed to " + path, reason);
  }
  path_ = std::move(path);
}

void File::remove() { remove_file(calls_, path_); }

uint64_t File::size_bytes() const {
  const Pin pinned = pin();
  struct stat status{};
  if (fstat(pinned.number(), &status) != 0) {
    const int reason = errno;
    throw FileError(path_, "can't be looked at", reason);
  }
  return static_cast<uint64_t>(status.st_size);
}

void sync_directory(FileCalls& calls, const std::string& directory) {
  const int descriptor = calls.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (descriptor < 0) {
    const int reason = errno;
    throw FileError(directory, "can't be opened", reason);
  }
  const int result = calls.fsync(descriptor);
  const int reason = errno;
  calls.close(descriptor);
  if (result != 0) throw FileError(directory, "can't be brought to its medium", reason);
}

void remove_file(FileCalls& calls, const std::string& path) {
  if (calls.unlink(path.c_str()) == 0) return;
  const int reason = errno;
  if (reason != ENOENT) throw FileError(path, "can't be removed", reason);
}

}  // namespace embstore::files
