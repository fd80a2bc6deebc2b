// A file's pages in the address space: a row that the page cache has is copied from there without a
// system call, which costs a tenth of a read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "files/file.h"

namespace embstore::ssd_hash {

class Mapping {
 public:
  // Of `bytes` of `file`, which may grow up to there. data() is null where the address space has no room;
  // then the file is read as if there were no mapping.
  Mapping(const File& file, uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }

  // Whether rows should be read from the first `bytes`, which were all written: the file is still as long,
  // and a sample of its pages is in the page cache. A page that isn't costs its reader one read of the
  // medium, no more.
  bool is_resident(uint64_t bytes) const;

 private:
  bool sample(uint64_t bytes) const;

  const File& file_;
  const uint64_t bytes_;
  const std::byte* data_ = nullptr;
  // A sample holds for a while; several threads may take it at once.
  mutable std::atomic<int64_t> sampled_until_ns_{0};
  mutable std::atomic<bool> sampled_resident_{false};
};

}  // namespace embstore::ssd_hash
