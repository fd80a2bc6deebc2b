// System calls on files, one of which fails, or does less than was asked for.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "files/file_calls.h"

namespace embstore {

enum class Fault { kIoError, kNoSpace, kShort };
struct Failure {
  int64_t call = INT64_MAX;  // the number of the call that fails
  Fault fault = Fault::kIoError;
  bool lasts = false;  // all later calls fail, too, until repair()
};

class FailingCalls : public files::FileCalls {
 public:
  explicit FailingCalls(const Failure& failure) : failure_(failure) {}

  int64_t calls() const { return calls_; }
  bool has_failed() const { return calls_ > failure_.call; }
  bool still_fails() const { return has_failed() && failure_.lasts && !repaired_; }
  void repair() { repaired_ = true; }

  int open(const char* path, int flags, mode_t mode) override {
    return fails() ? -1 : files::FileCalls::open(path, flags, mode);
  }
  ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) override {
    if (!strikes()) return files::FileCalls::pread(descriptor, data, bytes, offset);
    if (failure_.fault == Fault::kShort) {
      return files::FileCalls::pread(descriptor, data, (bytes + 1) / 2, offset);
    }
    return refused();
  }
  ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) override {
    if (!strikes()) return files::FileCalls::pwrite(descriptor, data, bytes, offset);
    const ssize_t some = files::FileCalls::pwrite(descriptor, data, (bytes + 1) / 2, offset);
    return failure_.fault == Fault::kShort ? some : refused();
  }
  // Syncs don't wait for the medium: no machine crashes here.
  int fdatasync(int) override { return fails() ? -1 : 0; }
  int fsync(int) override { return fails() ? -1 : 0; }
  int unlink(const char* path) override { return fails() ? -1 : files::FileCalls::unlink(path); }
  int rename(const char* from, const char* to) override {
    return fails() ? -1 : files::FileCalls::rename(from, to);
  }

 private:
  bool strikes() {
    const int64_t call = calls_++;
    return call == failure_.call || (call > failure_.call && failure_.lasts && !repaired_);
  }
  int refused() const {
    errno = failure_.fault == Fault::kNoSpace ? ENOSPC : EIO;
    return -1;
  }
  bool fails() {
    if (!strikes() || failure_.fault == Fault::kShort) return false;
    refused();
    return true;
  }

  const Failure failure_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> repaired_{false};
};

}  // namespace embstore
