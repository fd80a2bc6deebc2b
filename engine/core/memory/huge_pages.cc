#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "errors/error.h"

namespace embstore {
namespace {

size_t mapped_bytes(size_t size_bytes) {
  constexpr size_t kPageBytes = 4096;
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

void* map_pages(size_t size_bytes) {
  const size_t bytes = mapped_bytes(size_bytes);
  const bool huge = bytes >= kHugePageBytes;
  const size_t slack = huge ? kHugePageBytes : 0;
  void* start = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    throw Error(ErrorKind::kStorage, "can't reserve " + std::to_string(bytes) +
                                         " bytes of address space: " + std::strerror(errno));
  }
  if (!huge) return start;
  const auto first = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = (first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > first) munmap(start, aligned - first);
  if (aligned < first + slack) {
    munmap(reinterpret_cast<void*>(aligned + bytes), first + slack - aligned);
  }
  // Advice only: a kernel without transparent huge pages serves small ones.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void unmap_pages(void* address, size_t size_bytes) noexcept {
  if (address != nullptr) munmap(address, mapped_bytes(size_bytes));
}

}  // namespace embstore
