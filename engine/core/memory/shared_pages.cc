#include "memory/shared_pages.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "memory/address_space.h"
#include "platform/process_local.h"
#include "platform/round_up.h"

namespace embstore {
namespace {

constexpr size_t kAlignmentBytes = 64;
// A table of fewer than about 20,000 rows has shorter arrays, and gains nothing by huge pages.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kShortest = SIZE_MAX;  // the sanitizers detect accesses only to memory freed to malloc
#else
constexpr size_t kShortest = size_t{32} << 10;
#endif
// A part of a chunk that is never touched takes no memory.
constexpr size_t kChunkBytes = size_t{64} << 20;

size_t whole_huge_pages(size_t size_bytes) { return round_up(size_bytes, kHugePageBytes); }

}  // namespace

void* take_shared_pages(size_t size_bytes) {
  if (size_bytes >= kShortest) return ProcessLocal<SharedPages>::get().take(size_bytes);
  return std::memset(::operator new(size_bytes, std::align_val_t{kAlignmentBytes}), 0, size_bytes);
}

void give_shared_pages_back(void* memory, size_t size_bytes) noexcept {
  if (size_bytes >= kShortest) return ProcessLocal<SharedPages>::get().give_back(memory, size_bytes);
  ::operator delete(memory, std::align_val_t{kAlignmentBytes});
}

SharedPages::Chunk::Chunk(size_t bytes)
    : size_bytes(bytes), start(static_cast<std::byte*>(take_huge_pages(bytes))) {}

template <class Visit>
void SharedPages::for_each_page(size_t begin, size_t end, Visit visit) {
  while (begin < end) {
    const size_t page = begin / kHugePageBytes;
    const size_t end_in_page = std::min(end, (page + 1) * kHugePageBytes);
    visit(page, static_cast<uint32_t>(end_in_page - begin));
    begin = end_in_page;
  }
}

void* SharedPages::take(size_t size_bytes) {
  const size_t bytes = round_up(size_bytes, kAlignmentBytes);
  const MutexLock lock(mutex_);
  if (chunks_.empty() || !chunks_.back()->has_room(bytes)) {
    const size_t least = whole_huge_pages(bytes);
    chunks_.push_back(std::make_unique<Chunk>(
        std::max(least, whole_huge_pages(ReservedAddresses::affordable(kChunkBytes)))));
  }
  Chunk& chunk = *chunks_.back();
  const size_t begin = chunk.taken_bytes;
  chunk.used_in_page.resize(whole_huge_pages(begin + bytes) / kHugePageBytes);
  chunk.taken_bytes += bytes;
  chunk.used_bytes += bytes;
  for_each_page(begin, begin + bytes,
                [&chunk](size_t page, uint32_t in_page) { chunk.used_in_page[page] += in_page; });
  return chunk.start + begin;
}

void SharedPages::give_back(void* memory, size_t size_bytes) noexcept {
  const size_t bytes = round_up(size_bytes, kAlignmentBytes);
  const MutexLock lock(mutex_);
  const auto found = std::find_if(chunks_.begin(), chunks_.end(),
                                  [memory](const auto& chunk) { return chunk->contains(memory); });
  if (found == chunks_.end()) return;
  Chunk& chunk = **found;
  chunk.used_bytes -= bytes;
  if (chunk.used_bytes == 0) {
    chunks_.erase(found);
    return;
  }
  const auto begin = static_cast<size_t>(static_cast<std::byte*>(memory) - chunk.start);
  for_each_page(begin, begin + bytes, [&chunk](size_t page, uint32_t in_page) {
    chunk.used_in_page[page] -= in_page;
    if (chunk.used_in_page[page] == 0) discard_pages(chunk.start + page * kHugePageBytes, kHugePageBytes);
  });
}

}  // namespace embstore
