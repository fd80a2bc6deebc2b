#include "bench/file_yardstick.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/random_offsets.h"
#include "bench/timed_threads.h"
#include "errors/error.h"

namespace embstore {
namespace {

constexpr size_t kAlignment = 4096;
constexpr size_t kFillBytes = size_t{1} << 20;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<uint8_t, Free>;

Buffer buffer_of(size_t bytes) {
  const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Buffer buffer(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, whole)));
  if (!buffer) throw Error(ErrorKind::kStorage, "can't get memory of " + std::to_string(whole) + " bytes");
  return buffer;
}

// Returns bytes that no disk can compress.
Buffer random_buffer(size_t bytes) {
  Buffer buffer = buffer_of(bytes);
  RandomOffsets words(size_t{1} << 31, 1, 7);
  for (size_t i = 0; i + sizeof(uint32_t) <= bytes; i += sizeof(uint32_t)) {
    const auto word = static_cast<uint32_t>(words.next());
    std::memcpy(buffer.get() + i, &word, sizeof word);
  }
  return buffer;
}

[[noreturn]] void refuse(const std::string& path, const char* what, int reason) {
  throw Error(ErrorKind::kStorage, path + ": " + what + ": " + std::strerror(reason));
}

void transfer(int file, const std::string& path, bool write, uint8_t* data, size_t bytes, size_t offset) {
  size_t done = 0;
  while (done < bytes) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t n =
        write ? pwrite(file, data + done, bytes - done, at) : pread(file, data + done, bytes - done, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) refuse(path, write ? "can't be written" : "can't be read", n == 0 ? EIO : errno);
    done += static_cast<size_t>(n);
  }
}

}  // namespace

FileYardstick::FileYardstick(size_t bytes, const std::string& directory, bool direct)
    : bytes_((bytes + kFillBytes - 1) / kFillBytes * kFillBytes),
      direct_(direct),
      path_(directory + "/.file-yardstick-" + std::to_string(getpid())) {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | (direct ? O_DIRECT : 0), 0600);
  if (file_ < 0) {
    const int reason = errno;
    unlink(path_.c_str());  // a file system without direct I/O has created the name nevertheless
    refuse(path_, direct ? "can't be made for direct I/O" : "can't be made", reason);
  }
  unlink(path_.c_str());
  try {
    const Buffer buffer = random_buffer(kFillBytes);
    for (size_t at = 0; at < bytes_; at += kFillBytes)
      transfer(file_, path_, true, buffer.get(), kFillBytes, at);
    if (fsync(file_) != 0) refuse(path_, "can't be synced", errno);
  } catch (...) {
    close(file_);
    throw;
  }
}

FileYardstick::~FileYardstick() { close(file_); }

double FileYardstick::mb_per_s(bool write, bool random, size_t request_bytes, int threads,
                               double seconds) const {
  if (request_bytes == 0 || request_bytes % 512 != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "request_bytes: must be whole blocks of 512 bytes, not " + std::to_string(request_bytes));
  }
  if (threads < 1) {
    throw Error(ErrorKind::kInvalidArgument, "threads: must be 1 or more, not " + std::to_string(threads));
  }
  if (request_bytes > bytes_ / static_cast<size_t>(threads)) {
    throw Error(ErrorKind::kInvalidArgument, "request_bytes: " + std::to_string(request_bytes) +
                                                 " for each of " + std::to_string(threads) +
                                                 " threads is more than the file has");
  }
  const Buffer written = write ? random_buffer(request_bytes) : nullptr;
  uint8_t* const shared = written.get();
  return megabytes_per_second(
      threads, seconds, Clocked::kElapsed, [=, this](int thread, const std::atomic<bool>& stop) {
        const Buffer own_buffer = write ? nullptr : buffer_of(request_bytes);
        uint8_t* const buffer = write ? shared : own_buffer.get();
        RandomOffsets offsets(bytes_, request_bytes, static_cast<uint64_t>(thread) + 1);
        const size_t slots = bytes_ / request_bytes / static_cast<size_t>(threads);
        const size_t own = static_cast<size_t>(thread) * slots * request_bytes;
        size_t slot = 0;
        double moved = 0;
        do {  // at least once: less than a request can't be measured
          const size_t at = random ? offsets.next() : own + slot * request_bytes;
          transfer(file_, path_, write, buffer, request_bytes, at);
          moved += static_cast<double>(request_bytes);
          if (++slot == slots) slot = 0;
        } while (!stop.load(std::memory_order_relaxed));
        if (write && !direct_ && fdatasync(file_) != 0) refuse(path_, "can't be synced", errno);
        return moved;
      });
}

}  // namespace embstore
