#include "files/file_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace embstore::files {

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

}  // namespace embstore::files
