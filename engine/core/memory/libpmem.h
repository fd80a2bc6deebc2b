// The table of libpmem calls that the engine makes: all use of persistent memory goes through it, so a test
// can replace it by one that injects faults.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "access/access.h"

namespace embstore {

// Signatures and flags are those of libpmem(7).
struct LibPmem {
  static constexpr int kFileCreate = 1 << 0;
  static constexpr int kFileExcl = 1 << 1;

  void* (*map_file)(const char* path, size_t length, int flags, mode_t mode, size_t* mapped_length,
                    int* is_pmem);
  int (*unmap)(void* address, size_t length);
  const char* (*errormsg)();

  // For memory that map_file() calls persistent: what is written is durable after the same thread's next
  // drain.
  void* (*memcpy_nodrain)(void* to, const void* from, size_t length);
  void (*drain)();
  // For other mappings: what is written is durable when this returns 0.
  int (*msync)(const void* address, size_t length);
  // Returns 1 if the platform flushes caches when power is lost, so that no flushes are needed.
  int (*has_auto_flush)();
};

// Returns how memcpy_nodrain() of `length` bytes stores them: libpmem(7) chooses by the length and the
// environment.
Access access_of_memcpy(const LibPmem& calls, size_t length);

struct MappedFile {
  std::byte* data;
  size_t size_bytes;
  bool is_pmem;
};
// Maps the file. A size_bytes of 0 maps it as long as it is; otherwise it is created, or gets that length, as
// `flags` say. Throws Error(kStoreFull) if there is no room for it, or Error(kStorage); either names the
// file.
MappedFile map_file(const LibPmem& calls, const std::string& path, size_t size_bytes, int flags);

// Loads the library at the first call; throws Error(kMissingLibrary).
const LibPmem& libpmem();

}  // namespace embstore
