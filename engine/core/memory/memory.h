// A contiguous range of bytes in which a memory tier keeps its rows. The three sources differ only in how the
// range is obtained and given back: rows are read and written by plain loads and stores through data(), so
// the tier has one code path for all of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace embstore {

class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_.load(std::memory_order_relaxed); }

  // Makes the range longer, at the same address. Throws Error(kStorage) if there is no more memory. REQUIRES:
  // at most what was reserved, which only heap memory can be; one caller at a time.
  virtual void extend_to(size_t size_bytes);
  // Gives back the memory of whole pages of these bytes, if the source can; what they hold is unspecified
  // then.
  virtual void discard(size_t, size_t) {}

  // Tells that a separate array, which may be short, begins at this byte: it should not begin with a huge
  // page.
  virtual void use_small_pages_from(size_t) {}

  // The file behind the range, if there is one.
  virtual std::optional<std::string> path() const { return std::nullopt; }
  // Whether libpmem says that the range is persistent memory; nothing if libpmem was not asked.
  virtual std::optional<bool> is_pmem() const { return std::nullopt; }

 protected:
  Memory() = default;
  std::byte* data_ = nullptr;
  std::atomic<size_t> size_bytes_ = 0;
};

// Allocates anonymous memory, in huge pages if the kernel grants them, which may become as long as
// `reserved_bytes`. Its pages lie on `nodes` alone; without nodes, where the process's policy puts them.
std::unique_ptr<Memory> allocate_heap_memory(size_t size_bytes, size_t reserved_bytes = 0,
                                             const std::vector<int>& nodes = {});

// Maps a file of `size_bytes` at `path`, allocated in full, by libpmem. The file is removed with the returned
// object. A file left there by a process that died is replaced; a file in use is an error.
std::unique_ptr<Memory> map_libpmem_memory(const std::string& path, size_t size_bytes);

// Allocates memory of memkind's kind MEMKIND_DAX_KMEM: on the node(s) of MEMKIND_DAX_KMEM_NODES, or those
// that memkind finds. `size_bytes` must fit into what is free there, since the kernel kills a process that
// touches more than a bound node has.
std::unique_ptr<Memory> allocate_memkind_memory(size_t size_bytes);

// Returns the NUMA nodes on which the process may have memory, without those that memkind might use: if
// persistent memory serves as nodes, those of DRAM. Empty if memkind may use them all, or if the process has
// a policy of its own.
std::vector<int> nodes_without_memkind();

}  // namespace embstore
