// A contiguous range of bytes that a memory tier keeps its rows in. The three sources differ in how the
// range is obtained and given back, and in nothing else: rows are read and written by plain loads and
// stores through data(), so the tier has one code path for all of them.
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

  // Makes the range longer, where it stays. Throws Error(kStorage) where there is no more.
  // REQUIRES: at most what was reserved, which is nothing but for heap memory; one caller at a time.
  virtual void extend_to(size_t size_bytes);
  // Gives back what is behind whole pages of these bytes, where that can be had; what they hold is unspecified then.
  virtual void discard(size_t, size_t) {}

  // Where something else is kept from this byte on, of which there may be little: it takes no large page from its start.
  virtual void begin_small(size_t) {}

  // The file behind the range, if there is one.
  virtual std::optional<std::string> path() const { return std::nullopt; }
  // libpmem's word on whether the range is persistent memory; nothing where libpmem was not asked.
  virtual std::optional<bool> is_pmem() const { return std::nullopt; }

 protected:
  Memory() = default;
  std::byte* data_ = nullptr;
  std::atomic<size_t> size_bytes_ = 0;
};

// Anonymous memory, in huge pages where the kernel grants them; it may become as long as `reserved_bytes`. Its pages lie
// on these NUMA nodes alone, or, without any, where the process's policy has them.
std::unique_ptr<Memory> allocate_heap_memory(size_t size_bytes, size_t reserved_bytes = 0,
                                             const std::vector<int>& nodes = {});

// A file of `size_bytes` at `path`, allocated in full and mapped by libpmem. The file goes with the
// returned object. A file left there by a process that died is taken over; one in use is an error.
std::unique_ptr<Memory> map_libpmem_memory(const std::string& path, size_t size_bytes);

// An allocation of memkind's MEMKIND_DAX_KMEM kind: the node(s) of MEMKIND_DAX_KMEM_NODES, or those that
// memkind finds. `size_bytes` must fit into what is free there, since the kernel kills a process that
// touches more than a bound node has.
std::unique_ptr<Memory> allocate_memkind_memory(size_t size_bytes);

// The NUMA nodes that the process may have memory on, but for all that memkind might take: where persistent memory serves as
// nodes, those of DRAM. None where memkind may take them all, or where the process has a policy of its own.
std::vector<int> nodes_beside_memkind();

}  // namespace embstore
