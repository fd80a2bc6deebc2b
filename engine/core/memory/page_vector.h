// Vectors that may become as large as a batch. The memory of a large one comes from the system and goes back
// to it at once; malloc would keep it for later, in each thread's arena.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "memory/huge_pages.h"

namespace embstore {

template <class T>
class PageAllocator {
 public:
  using value_type = T;

  PageAllocator() = default;
  template <class U>
  PageAllocator(const PageAllocator<U>&) {}  // NOLINT(google-explicit-constructor): as allocators must

  // Throws Error(kStorage) if the system refuses.
  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    return static_cast<T*>(is_large(bytes) ? take_huge_pages(bytes) : ::operator new(bytes));
  }
  void deallocate(T* memory, size_t count) noexcept {
    const size_t bytes = count * sizeof(T);
    if (is_large(bytes)) {
      give_huge_pages_back(memory, bytes);
    } else {
      ::operator delete(memory);
    }
  }

  bool operator==(const PageAllocator&) const = default;

 private:
  static bool is_large(size_t bytes) { return bytes >= kHugePageBytes; }
};

template <class T>
using PageVector = std::vector<T, PageAllocator<T>>;

}  // namespace embstore
