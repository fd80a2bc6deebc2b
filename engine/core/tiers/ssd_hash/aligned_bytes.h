// Memory that O_DIRECT takes.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "tiers/ssd_hash/format.h"

namespace embstore::ssd_hash {

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

}  // namespace embstore::ssd_hash
