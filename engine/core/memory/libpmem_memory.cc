#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors/error.h"
#include "memory/libpmem.h"
#include "memory/memory.h"
#include "memory/room.h"

namespace embstore {
namespace {

// Owns the file's name: whoever holds the lock may use the file, and removes it when done.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : path_(path) {
    descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor_ < 0) {
      throw Error(ErrorKind::kStorage, path + ": can't be created: " + std::strerror(errno));
    }
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      close(descriptor_);
      if (reason == EWOULDBLOCK) throw InUseError(path);
      throw Error(ErrorKind::kStorage, path + ": can't be locked: " + std::strerror(reason));
    }
  }
  ~FileLock() {
    unlink(path_.c_str());        // before the lock goes, or another owner's file could be removed
    flock(descriptor_, LOCK_UN);  // which a forked child's copy of the descriptor would hold on to
    close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  std::string path_;
  int descriptor_;
};

class LibPmemMemory final : public Memory {
 public:
  LibPmemMemory(const std::string& path, size_t size_bytes) : calls_(libpmem()), path_(path), lock_(path) {
    // A leftover may be larger than what is asked for now, and libpmem never shrinks a file.
    if (ftruncate(lock_.descriptor(), 0) != 0) {
      throw Error(ErrorKind::kStorage, path + ": can't be emptied: " + std::strerror(errno));
    }
    require_room_in_memory(path, size_bytes);
    size_t mapped_bytes = 0;
    int is_pmem = 0;
    void* address =
        calls_.map_file(path.c_str(), size_bytes, LibPmem::kFileCreate, 0600, &mapped_bytes, &is_pmem);
    if (address == nullptr) {
      if (errno == ENOSPC) throw no_room(path, size_bytes);
      throw Error(ErrorKind::kStorage, path + ": libpmem can't map " + std::to_string(size_bytes) +
                                           " bytes: " + calls_.errormsg());
    }
    data_ = static_cast<std::byte*>(address);
    size_bytes_ = mapped_bytes;
    is_pmem_ = is_pmem != 0;
  }
  ~LibPmemMemory() override { calls_.unmap(data_, size_bytes_); }

  std::optional<std::string> path() const override { return path_; }
  std::optional<bool> is_pmem() const override { return is_pmem_; }

 private:
  const LibPmem& calls_;
  const std::string path_;
  const FileLock lock_;
  bool is_pmem_ = false;
};

}  // namespace

std::unique_ptr<Memory> map_libpmem_memory(const std::string& path, size_t size_bytes) {
  return std::make_unique<LibPmemMemory>(path, size_bytes);
}

}  // namespace embstore
