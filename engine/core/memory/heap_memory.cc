#include "memory/huge_pages.h"
#include "memory/memory.h"

namespace embstore {
namespace {

class HeapMemory final : public Memory {
 public:
  HeapMemory(size_t size_bytes, size_t reserved_bytes, const std::vector<int>& nodes)
      : pages_(size_bytes, reserved_bytes) {
    if (!nodes.empty()) pages_.bind_to_nodes(nodes);
    data_ = static_cast<std::byte*>(pages_.data());
    size_bytes_ = size_bytes;
  }
  void extend_to(size_t size_bytes) override {
    pages_.extend_to(size_bytes);
    size_bytes_ = size_bytes;
  }

  void discard(size_t begin, size_t end) override { pages_.discard(begin, end); }
  void use_small_pages_from(size_t offset) override { pages_.use_small_pages_from(offset); }

 private:
  PageRange pages_;
};

}  // namespace

std::unique_ptr<Memory> allocate_heap_memory(size_t size_bytes, size_t reserved_bytes,
                                             const std::vector<int>& nodes) {
  return std::make_unique<HeapMemory>(size_bytes, reserved_bytes, nodes);
}

}  // namespace embstore
