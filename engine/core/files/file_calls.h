// The one interface between the engine's files and the operating system. Tests replace it to inject
// faults.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace embstore::files {

// Arguments, results and errno are those of the system calls of the same names.
class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual int open(const char* path, int flags, mode_t mode);
  virtual int close(int descriptor);
  virtual ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset);
  virtual ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset);
  virtual int fdatasync(int descriptor);
  virtual int fsync(int descriptor);
  virtual int unlink(const char* path);
  virtual int rename(const char* from, const char* to);
};

FileCalls& system_file_calls();

}  // namespace embstore::files
