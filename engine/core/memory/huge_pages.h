// Address ranges for large arrays, aligned and advised so that the kernel backs them with huge pages:
// random probes into gigabytes of 4 KiB pages spend more time on page walks than on the data.
#pragma once

#include <cstddef>
#include <vector>

#include "memory/address_space.h"

namespace embstore {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Small pages are for memory that is touched here and there: each such place would have a huge page backed.
enum class PageSize { kHuge, kSmall };

// Returns zeroed memory that starts on a huge page's boundary and is backed when first touched. The second
// function gives it back. Throws Error(kStorage) if the system refuses.
void* take_huge_pages(size_t size_bytes);
void give_huge_pages_back(void* memory, size_t size_bytes) noexcept;

// Gives back the memory of these whole pages, which then read as zero.
void discard_pages(void* memory, size_t size_bytes) noexcept;

// Backs these whole pages now, instead of by a fault each when they are touched. A kernel that can't leaves
// them to faults.
void back_pages(void* memory, size_t size_bytes) noexcept;

// A range of addresses whose first part is zeroed memory that is backed when first touched; the rest is only
// addresses until it is needed. Throws Error(kStorage) if the system refuses.
//
// Huge pages begin behind the first kSmallBytes, so that small contents take small pages: otherwise each of a
// thousand tables of a hundred rows would take a huge page for its rows, another for what is kept about them,
// and so on.
class PageRange {
 public:
  static constexpr size_t kSmallBytes = size_t{128} << 10;

  PageRange(size_t size_bytes, size_t reserved_bytes, PageSize page_size = PageSize::kHuge);
  ~PageRange();
  PageRange(const PageRange&) = delete;
  PageRange& operator=(const PageRange&) = delete;

  void* data() const { return data_; }
  // Makes at least the first `size_bytes` memory. Nothing moves. REQUIRES: at most what was reserved; one
  // caller at a time.
  void extend_to(size_t size_bytes);
  // Gives back the memory of bytes `begin` to `end`, as far as these are whole pages, which then read as
  // zero.
  void discard(size_t begin, size_t end) const;
  // Has small pages begin again at this byte, since what lies from there on may be short; huge pages begin
  // behind them.
  void use_small_pages_from(size_t offset) const;
  // Binds its pages, also those to come, to these NUMA nodes. REQUIRES: none is backed yet.
  void bind_to_nodes(const std::vector<int>& nodes) const;

 private:
  void advise();

  size_t size_bytes_;
  size_t reserved_bytes_;
  const bool is_huge_;  // behind the first kSmallBytes
  void* data_;
  ReservedAddresses only_reserved_;
};

// An array of trivial, zero-initialised elements in a PageRange.
template <class T>
class PageArray {
 public:
  explicit PageArray(size_t count, PageSize page_size = PageSize::kHuge)
      : count_(count), range_(count * sizeof(T), count * sizeof(T), page_size) {}
  // Reserves room for `reserved` elements, of which `count` can be used.
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
