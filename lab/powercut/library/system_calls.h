// The kernel's calls, bypassing this library's stand-ins.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <string>

namespace powercut::system_calls {

inline int open(const char* path, int flags, mode_t mode = 0) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode));
}
inline void close(int descriptor) { syscall(SYS_close, descriptor); }
inline void* map(size_t bytes, int protection, int flags, int descriptor) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, bytes, protection, flags, descriptor, 0));
}
inline void unmap(void* address, size_t bytes) { syscall(SYS_munmap, address, bytes); }
// Returns false if the path exists.
inline bool link(const char* from, const char* to) {
  return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
}
// Links a symbolic link itself, not its target.
inline bool link_itself(const char* from, const char* to) {
  return syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0) == 0;
}
inline bool write_all(int descriptor, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = syscall(SYS_write, descriptor, from, bytes);
    if (put <= 0) return false;
    from += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}
// Writes a new file, or an existing one anew unless the flags have O_EXCL. Returns whether all is written.
inline bool write_file(const std::string& path, const std::string& content, int flags = 0) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | flags, 0600);
  const bool done = file >= 0 && write_all(file, content.data(), content.size());
  if (file >= 0) close(file);
  return done;
}

}  // namespace powercut::system_calls
