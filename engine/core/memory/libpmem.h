// The calls of libpmem that the engine makes, as a table: all use of persistent memory goes through it,
// so a test can put a fault-injecting one in its place.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "access/access.h"

namespace embstore {

// Signatures and flags as in libpmem(7).
struct LibPmem {
  static constexpr int kFileCreate = 1 << 0;
  static constexpr int kFileExcl = 1 << 1;

  void* (*map_file)(const char* path, size_t length, int flags, mode_t mode, size_t* mapped_length,
                    int* is_pmem);
  int (*unmap)(void* address, size_t length);
  const char* (*errormsg)();

  // Of memory that map_file() calls persistent: what is written is durable after the same thread's next drain.
  void* (*memcpy_nodrain)(void* to, const void* from, size_t length);
  void (*drain)();
  // Of a mapping that isn't: durable when it returns 0.
  int (*msync)(const void* address, size_t length);
  // 1 where caches are flushed by the platform when power goes, so that nobody has to.
  int (*has_auto_flush)();
};

// How memcpy_nodrain() of so many bytes stores them, as libpmem(7) says: by the length, and the environment.
Access access_of_memcpy(const LibPmem& calls, size_t length);

struct MappedFile {
  std::byte* data;
  size_t size_bytes;
  bool is_pmem;
};
// Maps the file: as long as it is, where size_bytes is 0; else it's made, or gets that length, as `flags` say. Throws
// Error(kStoreFull) where there's no room for it, or Error(kStorage); either names the file.
MappedFile map_file(const LibPmem& calls, const std::string& path, size_t size_bytes, int flags);

// Loads the library at the first call; throws Error(kMissingLibrary).
const LibPmem& libpmem();

}  // namespace embstore
