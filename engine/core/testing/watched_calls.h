// System calls on files that don't wait for the medium; and calls that a test sees, and may change or fail,
// before they are made.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "files/file_calls.h"

namespace embstore {

// System calls with syncs that do nothing, since no machine crashes in these tests.
class UnwaitingCalls : public files::FileCalls {
 public:
  int fdatasync(int) override { return 0; }
  int fsync(int) override { return 0; }
};

// A system call that is about to be made.
struct FileCall {
  enum Kind { kOpen, kRead, kWrite, kSync, kSyncDirectory, kRemove, kName };

  Kind kind;
  int descriptor = -1;    // of the file that is read, written or synced
  std::string path = {};  // of the file that is opened or removed, or its new path
  int flags = 0;          // for kOpen
  size_t bytes = 0;       // for kRead and kWrite, as is `offset`
  uint64_t offset = 0;

  std::string path_of_descriptor() const {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
  }
};

class WatchedCalls final : public UnwaitingCalls {
 public:
  // Called before each call. If it returns 0, the call is made, with the number of bytes that it left in
  // `bytes`; else the call fails with the returned errno. Must be thread-safe if several threads make calls.
  std::function<int(FileCall&)> before;

  int open(const char* path, int flags, mode_t mode) override {
    return fails({.kind = FileCall::kOpen, .path = path, .flags = flags})
               ? -1
               : FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    FileCall call = of_bytes(FileCall::kRead, descriptor, bytes, offset);
    return fails(call) ? -1 : FileCalls::pread(descriptor, data, call.bytes, offset);
  }
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
    FileCall call = of_bytes(FileCall::kWrite, descriptor, bytes, offset);
    return fails(call) ? -1 : FileCalls::pwrite(descriptor, data, call.bytes, offset);
  }
  int fdatasync(int descriptor) override {
    return fails({.kind = FileCall::kSync, .descriptor = descriptor}) ? -1 : 0;
  }
  int fsync(int descriptor) override {
    return fails({.kind = FileCall::kSyncDirectory, .descriptor = descriptor}) ? -1 : 0;
  }
  int unlink(const char* path) override {
    return fails({.kind = FileCall::kRemove, .path = path}) ? -1 : FileCalls::unlink(path);
  }
  int rename(const char* from, const char* to) override {
    return fails({.kind = FileCall::kName, .path = to}) ? -1 : FileCalls::rename(from, to);
  }

 private:
  static FileCall of_bytes(FileCall::Kind kind, int descriptor, size_t bytes, off_t offset) {
    return {.kind = kind, .descriptor = descriptor, .bytes = bytes, .offset = static_cast<uint64_t>(offset)};
  }
  bool fails(FileCall& call) const {
    const int reason = before ? before(call) : 0;
    errno = reason != 0 ? reason : errno;
    return reason != 0;
  }
  bool fails(FileCall&& call) const { return fails(call); }
};

}  // namespace embstore
