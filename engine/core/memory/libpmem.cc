#include "memory/libpmem.h"

#include "platform/shared_library.h"

namespace embstore {

const LibPmem& libpmem() {
  static const LibPmem calls = [] {
    const SharedLibrary library("libpmem.so.1", "libpmem1");
    LibPmem loaded{};
    library.load(loaded.map_file, "pmem_map_file");
    library.load(loaded.unmap, "pmem_unmap");
    library.load(loaded.errormsg, "pmem_errormsg");
    library.load(loaded.memcpy_nodrain, "pmem_memcpy_nodrain");
    library.load(loaded.flush, "pmem_flush");
    library.load(loaded.drain, "pmem_drain");
    library.load(loaded.msync, "pmem_msync");
    return loaded;
  }();
  return calls;
}

}  // namespace embstore
