// The memory of the emulated device, and the pinned memory of its host.
//
// A memfd is mapped twice. The host gets addresses of the first mapping, where nothing can be read or
// written: a host that follows such an address ends by SIGSEGV. Copies and kernels reach the same bytes in
// the second mapping, after a check that they are allocated: an address between two allocations, in freed
// memory, or never given out is a Fault.
//
// Not thread-safe: the device has a mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/emulated/draws.h"

namespace embstore::gpu::emulated {

class EmulatedMemory {
 public:
  // Throws Error(kStorage) if the system has no memory for it.
  explicit EmulatedMemory(size_t bytes);
  ~EmulatedMemory();
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;

  // Allocates memory and fills it with a drawn pattern, so that no test can depend on the contents of
  // uninitialised memory.
  DeviceAddress allocate(size_t bytes, Draws& draws);  // throws Error(kStoreFull)
  void free(DeviceAddress address);                    // throws Error(kInvalidArgument)
  MemorySize size() const { return {capacity_, capacity_ - used_}; }

  void* allocate_pinned(size_t bytes, Draws& draws);
  void free_pinned(void* memory);
  // For memory that wasn't allocated here.
  void pin(std::span<std::byte> memory);
  void unpin(std::span<std::byte> memory);
  // True if all of the range is pinned, false if none of it is; else throws Error(kInvalidArgument).
  bool is_pinned(const void* memory, size_t bytes) const;

  // Returns where copies and kernels reach the bytes. Throws Fault if any of them isn't allocated.
  std::byte* reach(uint64_t address, size_t bytes) const {
    const uint64_t offset = address - host_base_;
    const uint64_t in_page = offset % kPage;
    if (offset < mapped_ && in_page + bytes <= valid_[offset / kPage]) return view_ + offset;
    return reach_range(address, bytes);
  }
  // Throws Fault if the range isn't pinned: it may have been freed since the copy was put on its stream.
  void check_pinned(const void* memory, size_t bytes) const;

 private:
  static constexpr uint64_t kPage = 4096;

  std::byte* reach_range(uint64_t address, size_t bytes) const;
  std::string what_is_at(uint64_t address) const;
  uint64_t take_range(uint64_t bytes);
  void give_range_back(uint64_t offset, uint64_t bytes);

  const uint64_t capacity_;
  // More addresses than memory, so that addresses of freed memory are given out again as late as possible.
  const uint64_t mapped_;
  int file_ = -1;
  std::byte* host_mapping_ = nullptr;
  uint64_t host_base_ = 0;
  std::byte* view_ = nullptr;

  uint64_t used_ = 0;
  uint64_t next_ = 0;                       // begin of the search for the next range
  std::map<uint64_t, uint64_t> free_;       // ranges: offset and bytes
  std::map<uint64_t, uint64_t> allocated_;  // offset and bytes, as requested
  std::vector<uint16_t> valid_;             // number of allocated bytes of each page
  struct Pinned {
    uint64_t bytes;  // as requested
    bool is_own;
  };
  std::map<uintptr_t, Pinned> pinned_;  // by address
};

}  // namespace embstore::gpu::emulated
