#include "memory/libpmem.h"

#include <cerrno>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "errors/error.h"
#include "memory/room.h"
#include "platform/shared_library.h"

namespace embstore {
namespace {

struct CopyRules {
  size_t min_streamed;  // bytes
  bool flushes;         // after a copy that isn't streamed
};

// Reads the rules as libpmem reads them: once in a process.
CopyRules copy_rules(const LibPmem& calls) {
  constexpr size_t kMinStreamed = 256;
  const auto is = [](const char* name, std::string_view value) {
    const char* const text = std::getenv(name);
    return text != nullptr && std::string_view(text) == value;
  };
  CopyRules rules{kMinStreamed, calls.has_auto_flush() != 1};
  if (is("PMEM_NO_FLUSH", "1")) rules.flushes = false;
  if (is("PMEM_NO_FLUSH", "0")) rules.flushes = true;
  if (const char* const threshold = std::getenv("PMEM_MOVNT_THRESHOLD")) {
    const long long bytes = std::atoll(threshold);
    if (bytes >= 0) rules.min_streamed = static_cast<size_t>(bytes);
  }
  if (is("PMEM_NO_MOVNT", "1")) rules.min_streamed = std::numeric_limits<size_t>::max();
  return rules;
}

}  // namespace

Access access_of_memcpy(const LibPmem& calls, size_t length) {
  static const CopyRules rules = copy_rules(calls);
  if (length >= rules.min_streamed) return Access::kStoreStreamed;
  return rules.flushes ? Access::kStoreFlushed : Access::kStore;
}

MappedFile map_file(const LibPmem& calls, const std::string& path, size_t size_bytes, int flags) {
  if (size_bytes != 0) require_room_in_memory(path, size_bytes);
  size_t mapped_bytes = 0;
  int is_pmem = 0;
  void* const address = calls.map_file(path.c_str(), size_bytes, flags, 0600, &mapped_bytes, &is_pmem);
  if (address == nullptr) {
    if (errno == ENOSPC) throw no_room_error(path, size_bytes);
    const std::string what = size_bytes == 0 ? "it" : std::to_string(size_bytes) + " bytes";
    throw Error(ErrorKind::kStorage, path + ": libpmem can't map " + what + ": " + calls.errormsg());
  }
  return {static_cast<std::byte*>(address), mapped_bytes, is_pmem != 0};
}

const LibPmem& libpmem() {
  static const LibPmem calls = [] {
    const SharedLibrary library("libpmem.so.1", "libpmem1");
    LibPmem loaded{};
    library.load(loaded.map_file, "pmem_map_file");
    library.load(loaded.unmap, "pmem_unmap");
    library.load(loaded.errormsg, "pmem_errormsg");
    library.load(loaded.memcpy_nodrain, "pmem_memcpy_nodrain");
    library.load(loaded.drain, "pmem_drain");
    library.load(loaded.msync, "pmem_msync");
    library.load(loaded.has_auto_flush, "pmem_has_auto_flush");
    return loaded;
  }();
  return calls;
}

}  // namespace embstore
