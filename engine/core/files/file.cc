#include "files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "errors/error.h"

namespace embstore::ssd_hash {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int reason) {
  throw Error(ErrorKind::kStorage, path + ": " + what + ": " + std::generic_category().message(reason));
}

}  // namespace

int FileCalls::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int FileCalls::close(int descriptor) { return ::close(descriptor); }
ssize_t FileCalls::pread(int descriptor, void* data, size_t bytes, off_t offset) {
  return ::pread(descriptor, data, bytes, offset);
}
ssize_t FileCalls::pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return ::pwrite(descriptor, data, bytes, offset);
}
int FileCalls::fdatasync(int descriptor) { return ::fdatasync(descriptor); }
int FileCalls::fsync(int descriptor) { return ::fsync(descriptor); }
int FileCalls::unlink(const char* path) { return ::unlink(path); }
int FileCalls::rename(const char* from, const char* to) { return std::rename(from, to); }

FileCalls& system_file_calls() {
  static FileCalls calls;
  return calls;
}

File::File(FileCalls& calls, std::string path, int flags)
    : calls_(calls), path_(std::move(path)), descriptor_(calls.open(path_.c_str(), flags | O_CLOEXEC, 0600)) {
  if (descriptor_ >= 0) return;
  const int reason = errno;
  if (reason == EINVAL && (flags & O_DIRECT) != 0) {
    throw Error(
        ErrorKind::kStorage,
        path_ + ": this file system has no O_DIRECT; choose another path, or don't ask for direct I/O");
  }
  fail(path_, (flags & O_CREAT) != 0 ? "can't be created" : "can't be opened", reason);
}

File::~File() { calls_.close(descriptor_); }

size_t File::read_at(void* data, size_t bytes, uint64_t offset) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = calls_.pread(descriptor_, static_cast<char*>(data) + done, bytes - done,
                                     static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      fail(path_, "can't read " + std::to_string(bytes) + " bytes at " + std::to_string(offset), errno);
    }
  }
  return done;
}

void File::write_at(const void* data, size_t bytes, uint64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t put = calls_.pwrite(descriptor_, static_cast<const char*>(data) + done, bytes - done,
                                      static_cast<off_t>(offset + done));
    if (put > 0) {
      done += static_cast<size_t>(put);
    } else if (put == 0 || errno != EINTR) {
      fail(path_, "can't write " + std::to_string(bytes) + " bytes at " + std::to_string(offset),
           put == 0 ? ENOSPC : errno);
    }
  }
}

void File::sync() {
  if (calls_.fdatasync(descriptor_) != 0) fail(path_, "can't be brought to its medium", errno);
}

void File::rename_to(std::string path) {
  if (calls_.rename(path_.c_str(), path.c_str()) != 0) {
    fail(path_, "can't be renamed to " + path, errno);
  }
  path_ = std::move(path);
}

void File::remove() {
  if (calls_.unlink(path_.c_str()) != 0 && errno != ENOENT) fail(path_, "can't be removed", errno);
}

uint64_t File::size_bytes() const {
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) fail(path_, "can't be looked at", errno);
  return static_cast<uint64_t>(status.st_size);
}

void sync_directory(FileCalls& calls, const std::string& directory) {
  const int descriptor = calls.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (descriptor < 0) fail(directory, "can't be opened", errno);
  const int result = calls.fsync(descriptor);
  const int reason = errno;
  calls.close(descriptor);
  if (result != 0) fail(directory, "can't be brought to its medium", reason);
}

}  // namespace embstore::ssd_hash
