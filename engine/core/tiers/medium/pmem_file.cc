#include "tiers/medium/pmem_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "memory/room.h"

namespace embstore::medium {

PmemFile::PmemFile(const LibPmem& calls, std::string path) : calls_(calls), path_(std::move(path)) {
  map(0, 0);
}

PmemFile::PmemFile(const LibPmem& calls, std::string path, size_t size_bytes, int flags)
    : calls_(calls), path_(std::move(path)) {
  map(size_bytes, flags);
}

void PmemFile::map(size_t size_bytes, int flags) {
  if (size_bytes != 0) require_room_in_memory(path_, size_bytes);
  size_t mapped_bytes = 0;
  int is_pmem = 0;
  void* const address = calls_.map_file(path_.c_str(), size_bytes, flags, 0600, &mapped_bytes, &is_pmem);
  if (address == nullptr) {
    if (errno == ENOSPC) throw no_room(path_, size_bytes);
    const std::string what = size_bytes == 0 ? "it" : std::to_string(size_bytes) + " bytes";
    throw Error(ErrorKind::kStorage, path_ + ": libpmem can't map " + what + ": " + calls_.errormsg());
  }
  data_ = static_cast<std::byte*>(address);
  size_bytes_ = mapped_bytes;
  is_pmem_ = is_pmem != 0;
  // A forked child has no business here, and a stray store of its own would be durable.
  if (madvise(address, mapped_bytes, MADV_DONTFORK) != 0) {
    const int reason = errno;
    calls_.unmap(data_, size_bytes_);
    throw Error(ErrorKind::kStorage, path_ + ": its mapping can't be kept from forked processes: " +
                                         std::generic_category().message(reason));
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
    throw Error(ErrorKind::kStorage,
                path_ + ": can't be brought to its medium: " + std::generic_category().message(reason));
  }
}

}  // namespace embstore::medium
