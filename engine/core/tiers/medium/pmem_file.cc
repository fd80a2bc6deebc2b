#include "tiers/medium/pmem_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "files/file_error.h"

namespace embstore::medium {

PmemFile::PmemFile(const LibPmem& calls, std::string path) : calls_(calls), path_(std::move(path)) {
  map(0, 0);
}

PmemFile::PmemFile(const LibPmem& calls, std::string path, size_t size_bytes, int flags)
    : calls_(calls), path_(std::move(path)) {
  map(size_bytes, flags);
}

void PmemFile::map(size_t size_bytes, int flags) {
  const MappedFile mapped = map_file(calls_, path_, size_bytes, flags);
  data_ = mapped.data;
  size_bytes_ = mapped.size_bytes;
  is_pmem_ = mapped.is_pmem;
  // A forked child must not use the mapping: a stray store of its own would be durable.
  if (madvise(data_, size_bytes_, MADV_DONTFORK) != 0) {
    const int reason = errno;
    calls_.unmap(data_, size_bytes_);
    throw files::FileError(path_, "its mapping can't be kept from forked processes", reason);
  }
}

PmemFile::~PmemFile() {
  if (!inherited(made_in_)) calls_.unmap(data_, size_bytes_);
}

void PmemFile::write(size_t offset, const void* from, size_t bytes) noexcept {
  if (is_pmem_) {
    calls_.memcpy_nodrain(data_ + offset, from, bytes);
  } else {
    std::memcpy(data_ + offset, from, bytes);
  }
}

void PmemFile::drain() noexcept {
  if (is_pmem_) calls_.drain();
}

void PmemFile::sync(size_t offset, size_t bytes) {
  if (is_pmem_) return;
  if (calls_.msync(data_ + offset, bytes) != 0) {
    const int reason = errno;
    throw files::FileError(path_, "can't be brought to its medium", reason);
  }
}

}  // namespace embstore::medium
