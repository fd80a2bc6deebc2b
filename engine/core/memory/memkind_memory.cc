#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <vector>

#include "errors/error.h"
#include "memory/huge_pages.h"
#include "memory/memory.h"
#include "memory/numa_nodes.h"
#include "platform/shared_library.h"
#include "threads/mutex.h"

namespace embstore {
namespace {

struct memkind;  // opaque, as in memkind(3)

// The memkind calls that the engine makes; signatures as in memkind(3) and memkind_dax_kmem(3).
struct Memkind {
  memkind** dax_kmem;
  memkind** dax_kmem_all;
  int (*check_available)(memkind* kind);
  int (*posix_memalign)(memkind* kind, void** address, size_t alignment, size_t size);
  void (*free)(memkind* kind, void* address);
  void (*error_message)(int error, char* text, size_t size);
  int (*nodes_of_dax_kmem_all)(memkind* kind, unsigned long* mask, unsigned long mask_bits);
};

const Memkind& memkind_library() {
  static const Memkind calls = [] {
    const SharedLibrary library("libmemkind.so.0", "libmemkind0");
    Memkind loaded{};
    library.load(loaded.dax_kmem, "MEMKIND_DAX_KMEM");
    library.load(loaded.dax_kmem_all, "MEMKIND_DAX_KMEM_ALL");
    library.load(loaded.check_available, "memkind_check_available");
    library.load(loaded.posix_memalign, "memkind_posix_memalign");
    library.load(loaded.free, "memkind_free");
    library.load(loaded.error_message, "memkind_error_message");
    library.load(loaded.nodes_of_dax_kmem_all, "memkind_dax_kmem_all_get_mbind_nodemask");
    return loaded;
  }();
  return calls;
}

std::string describe(const Memkind& calls, int error) {
  std::array<char, 256> text{};
  calls.error_message(error, text.data(), text.size());
  return text.data();
}

void require_dax_kmem_node(const Memkind& calls) {
  if (const int error = calls.check_available(*calls.dax_kmem); error != 0) {
    throw Error(ErrorKind::kMissingDevice,
                "memkind finds no KMEM DAX node (" + describe(calls, error) +
                    "); make one with daxctl reconfigure-device --mode=system-ram, or name NUMA "
                    "nodes in MEMKIND_DAX_KMEM_NODES before the process starts");
  }
}

// The bytes that this process has promised its tables on each set of nodes, and what was free there at the
// first promise. Rows are backed only when they are written, so what is free now says too little.
class NodeLedger {
 public:
  void reserve(const std::vector<int>& nodes, size_t size_bytes) {
    const MutexLock lock(mutex_);
    auto [entry, first] = accounts_.try_emplace(nodes);
    Account& account = entry->second;
    if (account.promised_bytes == 0) {
      account.free_bytes = 0;
      for (const int node : nodes) account.free_bytes += node_free_bytes(node);
    }
    if (account.promised_bytes + size_bytes > account.free_bytes) {
      throw Error(ErrorKind::kStoreFull, "storage_size: " + std::to_string(size_bytes) +
                                             " bytes don't fit on NUMA node " + names_of_nodes(nodes) +
                                             ", which has " +
                                             std::to_string(account.free_bytes - account.promised_bytes) +
                                             " bytes left; give a smaller storage_size or another node in "
                                             "MEMKIND_DAX_KMEM_NODES");
    }
    account.promised_bytes += size_bytes;
  }
  void release(const std::vector<int>& nodes, size_t size_bytes) {
    const MutexLock lock(mutex_);
    accounts_.at(nodes).promised_bytes -= size_bytes;
  }

 private:
  struct Account {
    uint64_t free_bytes = 0;
    uint64_t promised_bytes = 0;
  };
  Mutex mutex_;
  std::map<std::vector<int>, Account> accounts_ GUARDED_BY(mutex_);
};

NodeLedger& node_ledger() {
  static NodeLedger ledger;
  return ledger;
}

class MemkindMemory final : public Memory {
 public:
  explicit MemkindMemory(size_t size_bytes) : calls_(memkind_library()), kind_(*calls_.dax_kmem) {
    require_dax_kmem_node(calls_);
    void* address = nullptr;
    if (const int error = calls_.posix_memalign(kind_, &address, kHugePageBytes, size_bytes); error != 0) {
      throw Error(ErrorKind::kStorage, "memkind can't allocate " + std::to_string(size_bytes) +
                                           " bytes of MEMKIND_DAX_KMEM: " + std::strerror(error));
    }
    // Asks the kernel: of the nodes that memkind may use, it picks those nearest to the calling CPU.
    nodes_ = bound_nodes(address);
    try {
      node_ledger().reserve(nodes_, size_bytes);
    } catch (...) {
      calls_.free(kind_, address);
      throw;
    }
    madvise(address, size_bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(address);
    size_bytes_ = size_bytes;
  }
  ~MemkindMemory() override {
    calls_.free(kind_, data_);
    node_ledger().release(nodes_, size_bytes_);
  }

 private:
  const Memkind& calls_;
  memkind* const kind_;
  std::vector<int> nodes_;
};

}  // namespace

std::vector<int> nodes_without_memkind() {
  const Memkind& calls = memkind_library();
  require_dax_kmem_node(calls);
  if (!nodes_of_own_policy().empty()) return {};
  NumaMask mask;
  if (const int error = calls.nodes_of_dax_kmem_all(*calls.dax_kmem_all, mask.words, kMaxNumaNodes);
      error != 0) {
    throw Error(ErrorKind::kStorage,
                "memkind doesn't tell the nodes of MEMKIND_DAX_KMEM: " + describe(calls, error));
  }
  const std::vector<int> allowed = allowed_nodes();
  const std::vector<int> taken = mask.nodes();
  std::vector<int> others;
  std::set_difference(allowed.begin(), allowed.end(), taken.begin(), taken.end(), std::back_inserter(others));
  return others;
}

std::unique_ptr<Memory> allocate_memkind_memory(size_t size_bytes) {
  return std::make_unique<MemkindMemory>(size_bytes);
}

}  // namespace embstore
