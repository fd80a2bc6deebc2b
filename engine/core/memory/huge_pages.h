// Address ranges for large arrays, aligned and advised so that the kernel backs them with huge pages:
// random probes into gigabytes of 4 KiB pages spend more time on page walks than on the data.
#pragma once

#include <cstddef>

namespace embstore {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Reserves zeroed memory that is backed when first touched; throws Error(kStorage). A range of at least
// one huge page starts on a huge page's boundary.
void* map_pages(size_t size_bytes);
void unmap_pages(void* address, size_t size_bytes) noexcept;

// An array of trivial, zero-initialised elements in such a range.
template <class T>
class PageArray {
 public:
  explicit PageArray(size_t count) : count_(count), data_(static_cast<T*>(map_pages(count * sizeof(T)))) {}
  ~PageArray() { unmap_pages(data_, count_ * sizeof(T)); }
  PageArray(const PageArray&) = delete;
  PageArray& operator=(const PageArray&) = delete;

  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_[i]; }
  T* data() const { return data_; }

 private:
  size_t count_;
  T* data_;
};

}  // namespace embstore
