#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "errors/error.h"
#include "memory/numa_nodes.h"

namespace embstore {
namespace {

constexpr size_t kPageBytes = 4096;

size_t whole_pages(size_t size_bytes) { return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

[[noreturn]] void refused(size_t bytes, const char* what) {
  throw Error(ErrorKind::kStorage, "can't " + std::string(what) + " " + std::to_string(bytes) +
                                       " bytes: " + std::strerror(errno) + advice_on_address_limit());
}

// Without any access it's nothing but addresses, which the system doesn't count against its memory.
void* reserve_addresses(size_t bytes, bool at_huge_page) {
  const size_t slack = at_huge_page ? kHugePageBytes : 0;
  void* const start =
      mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) refused(bytes + slack, "reserve addresses for");
  if (!at_huge_page) return start;
  const auto first = reinterpret_cast<uintptr_t>(start);
  const uintptr_t aligned = (first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > first) munmap(start, aligned - first);
  if (aligned < first + slack) munmap(reinterpret_cast<void*>(aligned + bytes), first + slack - aligned);
  return reinterpret_cast<void*>(aligned);
}

// Unmaps what was reserved where it can't become memory.
void make_memory(void* reserved, size_t reserved_bytes, size_t size_bytes) {
  if (size_bytes == 0 || mprotect(reserved, size_bytes, PROT_READ | PROT_WRITE) == 0) return;
  const int reason = errno;
  munmap(reserved, reserved_bytes);
  errno = reason;
  refused(size_bytes, "get memory of");
}

}  // namespace

void* take_huge_pages(size_t size_bytes) {
  const size_t bytes = whole_pages(size_bytes);
  void* const memory = reserve_addresses(bytes, /*at_huge_page=*/true);
  make_memory(memory, bytes, bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void give_huge_pages_back(void* memory, size_t size_bytes) noexcept {
  munmap(memory, whole_pages(size_bytes));
}

void back_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t size_bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  madvise(memory, size_bytes, MADV_POPULATE_WRITE);
#endif
}

PageRange::PageRange(size_t size_bytes, size_t reserved_bytes, PageSize page_size)
    : page_size_(page_size),
      size_bytes_(whole_pages(size_bytes)),
      reserved_bytes_(std::max({whole_pages(reserved_bytes), size_bytes_, kPageBytes})),
      only_reserved_(reserved_bytes_ - size_bytes_) {
  const bool huge = page_size == PageSize::kHuge && reserved_bytes_ >= kHugePageBytes;
  data_ = reserve_addresses(reserved_bytes_, huge);
  make_memory(data_, reserved_bytes_, size_bytes_);
  advise();
}

PageRange::~PageRange() { munmap(data_, reserved_bytes_); }

void PageRange::extend_to(size_t size_bytes) {
  const size_t wanted = whole_pages(size_bytes);
  if (wanted <= size_bytes_) return;
  auto* const from = static_cast<std::byte*>(data_) + size_bytes_;
  if (wanted > reserved_bytes_ || mprotect(from, wanted - size_bytes_, PROT_READ | PROT_WRITE) != 0) {
    refused(wanted - size_bytes_, "get memory of");
  }
  size_bytes_ = wanted;
  only_reserved_.change_to(reserved_bytes_ - size_bytes_);
  advise();
}

void PageRange::discard(size_t begin, size_t end) const {
  const size_t first = whole_pages(begin);
  const size_t last = std::min(end, size_bytes_) / kPageBytes * kPageBytes;
  if (first < last) madvise(static_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

void PageRange::bind_to_nodes(const std::vector<int>& nodes) const {
  embstore::bind_to_nodes(data_, reserved_bytes_, nodes);
}

// Advice only: a kernel without transparent huge pages serves small ones. Not of what is only reserved, or the
// first byte of a short array would take a huge page.
void PageRange::advise() {
  if (page_size_ == PageSize::kSmall) {
    madvise(data_, size_bytes_, MADV_NOHUGEPAGE);
  } else if (size_bytes_ >= kHugePageBytes) {
    madvise(data_, size_bytes_, MADV_HUGEPAGE);
  }
}

}  // namespace embstore
