// A file on persistent memory, mapped by libpmem: what a thread wrote is durable once the thread has drained.
//
// If libpmem says that the mapping isn't persistent memory, draining does nothing, and sync() makes the bytes durable. A caller
// that does both need not ask which it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory/libpmem.h"
#include "platform/fork.h"

namespace embstore::medium {

class PmemFile {
 public:
  // Maps the file that is there, whole. Throws Error(kStorage), which names it.
  PmemFile(const LibPmem& calls, std::string path);
  // Makes the file, or changes its length. `flags` as of libpmem.
  PmemFile(const LibPmem& calls, std::string path, size_t size_bytes, int flags);
  // In a forked child it leaves the mapping alone, which isn't there.
  ~PmemFile();
  PmemFile(const PmemFile&) = delete;
  PmemFile& operator=(const PmemFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool is_pmem() const { return is_pmem_; }

  void write(size_t offset, const void* from, size_t bytes) noexcept;
  // How write() stores so many bytes.
  Access access_of_write(size_t bytes) const {
    return is_pmem_ ? access_of_memcpy(calls_, bytes) : Access::kStore;
  }
  // What this thread wrote and flushed is durable, if this is persistent memory.
  void drain() noexcept;
  // What anybody wrote there is durable, if this isn't persistent memory. Throws Error(kStorage).
  void sync(size_t offset, size_t bytes);
  // Both.
  void settle(size_t offset, size_t bytes) {
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
