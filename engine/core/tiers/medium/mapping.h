// Maps a file's pages into the address space: a row in the page cache is copied from there without a system
// call, at a tenth of the cost of a read. A mapping needs no descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "files/file.h"

namespace embstore::medium {

class Mapping {
 public:
  // Maps `bytes` of `file`, which may grow up to there. data() is null if the address space has no room, or
  // the process has its maximum number of mappings; then the file is read as if there were no mapping.
  // Callers copy rows by guarded_copy().
  Mapping(const files::File& file, uint64_t bytes);
  ~Mapping();
  // Returns how many mappings a process may have: an eighth of the page ranges that the system allows it,
  // since other code needs some, too.
  static size_t most();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }

  // Returns whether rows should be copied from the mapping: a sample of the pages of the first `bytes`, all
  // of which were written, is in the page cache. A page that isn't costs its reader one read of the medium,
  // no more.
  bool is_resident(uint64_t bytes) const;

  // Has the file read by system calls from now on, whose errors say what is wrong with it.
  void give_up() const { given_up_.store(true, std::memory_order_relaxed); }

 private:
  bool sample(uint64_t bytes) const;

  const uint64_t bytes_;
  const std::byte* data_ = nullptr;
  // A sample is valid for a while; several threads may take it at once.
  mutable std::atomic<int64_t> sampled_until_ns_{0};
  mutable std::atomic<bool> sampled_resident_{false};
  mutable std::atomic<bool> given_up_{false};
};

}  // namespace embstore::medium
