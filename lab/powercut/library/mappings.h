// Where the program has mapped files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "medium_file.h"

namespace powercut {

struct Mapped {
  MediumFile* file;
  uint64_t offset;  // in the file
  size_t bytes;     // from there to the mapping's end
};

class Mappings {
 public:
  void add(const void* address, size_t bytes, MediumFile& file, uint64_t offset);
  // Also where a part of what was added goes, or something else is mapped over it.
  void remove(const void* address, size_t bytes);
  std::optional<Mapped> find(const void* address) const;
  // False only where nothing was ever mapped near; may be asked without the computer's lock.
  bool may_touch(const void* address, size_t bytes) const;
  // The first address at or after `address` that is mapped; null for none.
  const std::byte* next(const void* address) const;

 private:
  struct Stretch {
    uintptr_t end;
    MediumFile* file;
    uint64_t offset;
  };
  std::map<uintptr_t, Stretch> stretches_;
  std::atomic<uintptr_t> lowest_{UINTPTR_MAX};  // of all that was ever mapped
  std::atomic<uintptr_t> highest_{0};
};

}  // namespace powercut
