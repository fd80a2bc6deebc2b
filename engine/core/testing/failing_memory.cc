#include "testing/failing_memory.h"

#include <cstdint>
#include <cstdlib>

#if !defined(__SANITIZE_THREAD__)
namespace {

constexpr int64_t kNone = -1;
thread_local int64_t allocations_left = kNone;  // allocations before the one that fails

// Returns null for the allocation that fails.
void* allocate(size_t bytes, size_t alignment) noexcept {
  if (allocations_left != kNone && allocations_left-- == 0) return nullptr;
  return alignment == 0 ? std::malloc(bytes) : std::aligned_alloc(alignment, bytes);
}
void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return or_throw(allocate(bytes, 0)); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return or_throw(allocate((bytes + unit - 1) / unit * unit, unit));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace embstore {
FailingMemory::FailingMemory(int64_t number) { allocations_left = number; }
FailingMemory::~FailingMemory() { allocations_left = kNone; }
bool FailingMemory::has_failed() const { return allocations_left == kNone; }
}  // namespace embstore
#else
namespace embstore {
FailingMemory::FailingMemory(int64_t) {}
FailingMemory::~FailingMemory() = default;
bool FailingMemory::has_failed() const { return false; }
}  // namespace embstore
#endif
