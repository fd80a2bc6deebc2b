// The places in memory where the program has mapped files.
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
  // Call also for a part of a mapping, and for a range that another mapping covers.
  void remove(const void* address, size_t bytes);
  std::optional<Mapped> find(const void* address) const;
  // Returns false only if nothing was ever mapped nearby. May be called without the computer's lock.
  bool may_touch(const void* address, size_t bytes) const;
  // Returns the first mapped address at or after `address`, or null.
  const std::byte* next(const void* address) const;

 private:
  struct Stretch {
    uintptr_t end;
    MediumFile* file;
    uint64_t offset;
  };
  std::map<uintptr_t, Stretch> stretches_;
  std::atomic<uintptr_t> lowest_{UINTPTR_MAX};  // of all mappings so far
  std::atomic<uintptr_t> highest_{0};
};

}  // namespace powercut
