// A file's pages in the address space: a row that the page cache has is copied from there without a
// system call, which costs a tenth of a read. A mapping needs no descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "files/file.h"

namespace embstore::medium {

class Mapping {
 public:
  // Of `bytes` of `file`, which may grow up to there. data() is null where the address space has no room, or the process has as
  // many as it may have of these; then the file is read as if there were no mapping. Rows are to be copied by guarded_copy().
  Mapping(const files::File& file, uint64_t bytes);
  ~Mapping();
  // How many a process may have: an eighth of the ranges of pages that the system gives it, since all else needs some, too.
  static size_t most();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }

  // Whether rows should be read from the first `bytes`, which were all written: a sample of their pages is in
  // the page cache. A page that isn't costs its reader one read of the medium, no more.
  bool is_resident(uint64_t bytes) const;

  // From here on the file is read by calls, which say what is wrong with it.
  void give_up() const { given_up_.store(true, std::memory_order_relaxed); }

 private:
  bool sample(uint64_t bytes) const;

  const uint64_t bytes_;
  const std::byte* data_ = nullptr;
  // A sample holds for a while; several threads may take it at once.
  mutable std::atomic<int64_t> sampled_until_ns_{0};
  mutable std::atomic<bool> sampled_resident_{false};
  mutable std::atomic<bool> given_up_{false};
};

}  // namespace embstore::medium
