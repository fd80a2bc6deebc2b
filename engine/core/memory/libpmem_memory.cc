#include <unistd.h>

#include "files/file.h"
#include "files/path_lock.h"
#include "memory/libpmem.h"
#include "memory/memory.h"
#include "platform/fork.h"

namespace embstore {
namespace {

// A file that exists only while its owner does.
class OwnedFile {
 public:
  explicit OwnedFile(const std::string& path) : lock_(path), path_(path) {
    // The bytes of a leftover file aren't zeros.
    files::remove_file(files::system_file_calls(), path);
  }
  ~OwnedFile() {
    if (!inherited(made_in_)) unlink(path_.c_str());
  }
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;

 private:
  const files::PathLock lock_;  // released last
  const std::string path_;
  const ForkGeneration made_in_ = fork_generation();
};

class LibPmemMemory final : public Memory {
 public:
  LibPmemMemory(const std::string& path, size_t size_bytes) : calls_(libpmem()), path_(path), file_(path) {
    const MappedFile mapped = map_file(calls_, path, size_bytes, LibPmem::kFileCreate);
    data_ = mapped.data;
    size_bytes_ = mapped.size_bytes;
    is_pmem_ = mapped.is_pmem;
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
