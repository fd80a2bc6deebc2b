// A file on persistent memory, mapped by libpmem: a thread's writes are durable once it has called drain().
//
// If libpmem says that the mapping isn't persistent memory, drain() does nothing, and sync() makes the bytes
// durable. A caller that calls both need not ask which it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory/libpmem.h"
#include "platform/fork.h"

namespace embstore::medium {

class PmemFile {
 public:
  // Maps all of an existing file. Throws Error(kStorage), which names it.
  PmemFile(const LibPmem& calls, std::string path);
  // Creates the file, or changes its length. `flags` are libpmem's.
  PmemFile(const LibPmem& calls, std::string path, size_t size_bytes, int flags);
  // In a forked child it doesn't unmap, since the child doesn't have the mapping.
  ~PmemFile();
  PmemFile(const PmemFile&) = delete;
  PmemFile& operator=(const PmemFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool is_pmem() const { return is_pmem_; }

  void write(size_t offset, const void* from, size_t bytes) noexcept;
  // Returns how write() stores `bytes` bytes.
  Access access_of_write(size_t bytes) const {
    return is_pmem_ ? access_of_memcpy(calls_, bytes) : Access::kStore;
  }
  // Makes durable what this thread wrote, if this is persistent memory.
  void drain() noexcept;
  // Makes durable what any thread wrote there, if this isn't persistent memory. Throws Error(kStorage).
  void sync(size_t offset, size_t bytes);
  // Calls drain() and sync().
  void drain_and_sync(size_t offset, size_t bytes) {
    drain();
    sync(offset, bytes);
  }

 private:
  void map(size_t size_bytes, int flags);

  const LibPmem& calls_;
  const std::string path_;
  const ForkGeneration made_in_ = fork_generation();
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool is_pmem_ = false;
};

}  // namespace embstore::medium
