// Arrays of some 10 KB and more, one behind the other in huge pages that they share: each by itself is
// shorter than a huge page, or ends in small ones, and random probes of a thousand such arrays spend their
// time on page walks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/huge_pages.h"
#include "threads/mutex.h"

namespace embstore {

// Returns zeroed memory from the start of a cache line; the second function gives it back. Short arrays come
// from malloc. Throws Error(kStorage) or std::bad_alloc if there is no memory. In a forked child, inherited
// memory stays where it is.
void* take_shared_pages(size_t size_bytes);
void give_shared_pages_back(void* memory, size_t size_bytes) noexcept;

// Never gives out a byte twice. Arrays that grow together are replaced in the order in which they were taken,
// so those in use lie side by side, and the space in front of them is whole pages, which go back to the
// system. Reusing holes took a quarter more memory in a simulation, since a larger array seldom fits where
// the one before it was.
class SharedPages {
 public:
  void* take(size_t size_bytes);
  // Does nothing if the memory isn't from here.
  void give_back(void* memory, size_t size_bytes) noexcept;

 private:
  struct Chunk {
    explicit Chunk(size_t bytes);
    ~Chunk() { give_huge_pages_back(start, size_bytes); }
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
    bool has_room(size_t bytes) const { return bytes <= size_bytes - taken_bytes; }
    bool contains(const void* memory) const { return memory >= start && memory < start + size_bytes; }

    const size_t size_bytes;
    std::byte* const start;
    size_t taken_bytes = 0;              // from its start, including what was given back
    size_t used_bytes = 0;               // taken and not given back
    std::vector<uint32_t> used_in_page;  // bytes in use in each huge page that was taken from
  };
  // Calls visit(page, bytes) for each huge page that bytes `begin` to `end` lie in.
  template <class Visit>
  static void for_each_page(size_t begin, size_t end, Visit visit);

  Mutex mutex_;
  std::vector<std::unique_ptr<Chunk>> chunks_ GUARDED_BY(mutex_);  // memory is taken from the last one
};

}  // namespace embstore
