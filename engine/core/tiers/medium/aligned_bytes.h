// Blocks of a file, and block-aligned memory, which O_DIRECT requires.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "platform/round_up.h"

namespace embstore::medium {

// Every write begins and ends at a multiple of this.
inline constexpr size_t kBlockBytes = 4096;
constexpr uint64_t round_up_to_block(uint64_t bytes) { return round_up(bytes, kBlockBytes); }
constexpr uint64_t round_down_to_block(uint64_t bytes) { return bytes / kBlockBytes * kBlockBytes; }

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kBlockBytes}))), size_(bytes) {}
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{kBlockBytes}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

}  // namespace embstore::medium
