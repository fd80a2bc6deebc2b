#include "memory/huge_pages.h"
#include "memory/memory.h"

namespace embstore {
namespace {

class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(size_t size_bytes) : pages_(size_bytes) {
    data_ = pages_.data();
    size_bytes_ = size_bytes;
  }

 private:
  PageArray<std::byte> pages_;
};

}  // namespace

std::unique_ptr<Memory> allocate_heap_memory(size_t size_bytes) {
  return std::make_unique<HeapMemory>(size_bytes);
}

}  // namespace embstore
