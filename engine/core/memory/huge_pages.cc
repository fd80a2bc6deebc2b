#include "memory/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "errors/error.h"
#include "memory/numa_nodes.h"
#include "platform/round_up.h"

namespace embstore {
namespace {

constexpr size_t kPageBytes = 4096;

size_t whole_pages(size_t size_bytes) { return round_up(size_bytes, kPageBytes); }

[[noreturn]] void refused(size_t bytes, const char* what) {
  throw Error(ErrorKind::kStorage, "can't " + std::string(what) + " " + std::to_string(bytes) +
                                       " bytes: " + std::strerror(errno) + advice_on_address_limit());
}

// A mapping without access rights takes addresses alone, which the system doesn't count against its
// memory.
void* reserve_addresses(size_t bytes) {
  void* const start = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) refused(bytes, "reserve addresses for");
  return start;
}

// The same; the bytes behind the first `small_bytes` start on a huge page's boundary.
void* reserve_for_huge_pages(size_t bytes, size_t small_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(reserve_addresses(bytes + kHugePageBytes));
  const uintptr_t start = round_up(first + small_bytes, kHugePageBytes) - small_bytes;
  const uintptr_t end = first + bytes + kHugePageBytes;
  if (start > first) munmap(reinterpret_cast<void*>(first), start - first);
  if (start + bytes < end) munmap(reinterpret_cast<void*>(start + bytes), end - start - bytes);
  return reinterpret_cast<void*>(start);
}

// Makes reserved addresses memory. If it can't, unmaps what was reserved and throws.
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
  void* const memory = reserve_for_huge_pages(bytes, /*small_bytes=*/0);
  make_memory(memory, bytes, bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void give_huge_pages_back(void* memory, size_t size_bytes) noexcept {
  munmap(memory, whole_pages(size_bytes));
}

void discard_pages(void* memory, size_t size_bytes) noexcept { madvise(memory, size_bytes, MADV_DONTNEED); }

void back_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t size_bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  madvise(memory, size_bytes, MADV_POPULATE_WRITE);
#endif
}

PageRange::PageRange(size_t size_bytes, size_t reserved_bytes, PageSize page_size)
    : size_bytes_(whole_pages(size_bytes)),
      reserved_bytes_(std::max({whole_pages(reserved_bytes), size_bytes_, kPageBytes})),
      is_huge_(page_size == PageSize::kHuge && reserved_bytes_ >= kHugePageBytes),
      only_reserved_(reserved_bytes_ - size_bytes_) {
  data_ =
      is_huge_ ? reserve_for_huge_pages(reserved_bytes_, kSmallBytes) : reserve_addresses(reserved_bytes_);
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
  if (first < last) discard_pages(static_cast<std::byte*>(data_) + first, last - first);
}

void PageRange::use_small_pages_from(size_t offset) const {
  const auto start = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t first = (start + offset) / kPageBytes * kPageBytes;
  const uintptr_t last = std::min(round_up(first + kSmallBytes, kHugePageBytes), start + size_bytes_);
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_NOHUGEPAGE);
}

void PageRange::bind_to_nodes(const std::vector<int>& nodes) const {
  embstore::bind_to_nodes(data_, reserved_bytes_, nodes);
}

// This is advice only: a kernel without transparent huge pages serves small ones.
void PageRange::advise() {
  const size_t small_bytes = is_huge_ ? std::min(size_bytes_, kSmallBytes) : size_bytes_;
  // Small pages are asked for explicitly: the system may put ranges side by side, and a huge page
  // across both.
  madvise(data_, small_bytes, MADV_NOHUGEPAGE);
  if (small_bytes < size_bytes_)
    madvise(static_cast<std::byte*>(data_) + small_bytes, size_bytes_ - small_bytes, MADV_HUGEPAGE);
}

}  // namespace embstore
