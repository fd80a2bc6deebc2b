// Address ranges for large arrays, aligned and advised so that the kernel backs them with huge pages:
// random probes into gigabytes of 4 KiB pages spend more time on page walks than on the data.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/address_space.h"

namespace embstore {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Small pages are for what is touched here and there: a huge page would be backed for each such place.
enum class PageSize { kHuge, kSmall };

// Zeroed memory of so many bytes, which starts on a huge page's boundary and is backed when first touched; and its
// return. Throws Error(kStorage) where the system refuses.
void* take_huge_pages(size_t size_bytes);
void give_huge_pages_back(void* memory, size_t size_bytes) noexcept;

// Gives back what is behind these whole pages: they read as zero then.
void discard_pages(void* memory, size_t size_bytes) noexcept;

// Backs these whole pages now, in place of a fault for each when it's touched; where the kernel can't, it's left to that.
void back_pages(void* memory, size_t size_bytes) noexcept;

// An address range of which a part, from its start, is zeroed memory that is backed when first touched; the
// rest is nothing but addresses, until it is needed. Throws Error(kStorage) where the system refuses.
//
// Huge pages begin behind the first kSmallBytes, so that what fills no more takes no more: of a thousand tables of a hundred
// rows, each would take a huge page for its rows, another for what is kept of them, and so on.
class PageRange {
 public:
  static constexpr size_t kSmallBytes = size_t{128} << 10;

  PageRange(size_t size_bytes, size_t reserved_bytes, PageSize page_size = PageSize::kHuge);
  ~PageRange();
  PageRange(const PageRange&) = delete;
  PageRange& operator=(const PageRange&) = delete;

  void* data() const { return data_; }
  // Makes at least so many bytes memory. Nothing moves. REQUIRES: at most what was reserved; one caller at a
  // time.
  void extend_to(size_t size_bytes);
  // Gives back what is behind bytes `begin` to `end`, as far as these are whole pages: they read as zero then.
  void discard(size_t begin, size_t end) const;
  // What is kept from this byte on may be short: huge pages begin behind it anew.
  void begin_small(size_t offset) const;
  // Lets its pages, also those to come, lie on these NUMA nodes alone. REQUIRES: none is backed yet.
  void bind_to_nodes(const std::vector<int>& nodes) const;

 private:
  void advise();

  size_t size_bytes_;
  size_t reserved_bytes_;
  const bool is_huge_;  // behind its first bytes
  void* data_;
  ReservedAddresses only_reserved_;
};

// An array of trivial, zero-initialised elements in such a range.
template <class T>
class PageArray {
 public:
  explicit PageArray(size_t count, PageSize page_size = PageSize::kHuge)
      : count_(count), range_(count * sizeof(T), count * sizeof(T), page_size) {}
  // Room for `reserved` elements, of which `count` can be used.
  PageArray(size_t count, size_t reserved) : count_(count), range_(count * sizeof(T), reserved * sizeof(T)) {}

  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data()[i]; }
  T* data() const { return static_cast<T*>(range_.data()); }
  // See PageRange.
  void extend_to(size_t count) {
    range_.extend_to(count * sizeof(T));
    count_ = count;
  }
  void discard(size_t begin, size_t end) const { range_.discard(begin * sizeof(T), end * sizeof(T)); }

 private:
  size_t count_;
  PageRange range_;
};

}  // namespace embstore
