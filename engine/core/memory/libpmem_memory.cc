#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors/error.h"
#include "files/path_lock.h"
#include "memory/libpmem.h"
#include "memory/memory.h"
#include "memory/room.h"
#include "platform/fork.h"

namespace embstore {
namespace {

// A file that is there only while its owner is.
class OwnedFile {
 public:
  explicit OwnedFile(const std::string& path) : lock_(path), path_(path) {
    // A leftover has bytes that aren't zeros.
    if (unlink(path.c_str()) != 0 && errno != ENOENT) {
      throw Error(ErrorKind::kStorage, path + ": can't be removed: " + std::strerror(errno));
    }
  }
  ~OwnedFile() {
    if (!inherited(made_in_)) unlink(path_.c_str());
  }
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;

 private:
  const files::PathLock lock_;  // given up last
  const std::string path_;
  const ForkGeneration made_in_ = fork_generation();
};

class LibPmemMemory final : public Memory {
 public:
  LibPmemMemory(const std::string& path, size_t size_bytes) : calls_(libpmem()), path_(path), file_(path) {
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
  const OwnedFile file_;
  bool is_pmem_ = false;
};

}  // namespace

std::unique_ptr<Memory> map_libpmem_memory(const std::string& path, size_t size_bytes) {
  return std::make_unique<LibPmemMemory>(path, size_bytes);
}

}  // namespace embstore
