// Room for rows, asked for before it's taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "errors/error.h"

namespace embstore {

// Throws Error(kStoreFull) where the file at `path`, which may be there already, would lie in memory and can't have
// `size_bytes`: the kernel doesn't refuse what a tmpfs may have and the computer doesn't, but ends processes for it.
// Of other file systems nothing is asked: their calls tell.
void require_room_in_memory(const std::string& path, uint64_t size_bytes);

// What the file at `path` has of its file system, which is less than its length where parts of it were never written; 0 where
// there's none.
uint64_t taken_bytes(const std::string& path);

// What the process may take without ending itself or others, of the computer's memory and of its control groups'; nothing where the
// system doesn't say.
std::optional<uint64_t> available_memory_bytes();

// What somebody will take, and hasn't yet, so that others don't count on it.
class MemoryToCome {
 public:
  MemoryToCome() = default;
  ~MemoryToCome() { of_process_ -= bytes_; }
  MemoryToCome(const MemoryToCome&) = delete;
  MemoryToCome& operator=(const MemoryToCome&) = delete;

  void add(uint64_t bytes) {
    bytes_ += bytes;
    of_process_ += bytes;
  }
  static uint64_t of_process() { return of_process_; }

 private:
  static inline std::atomic<uint64_t> of_process_{0};
  uint64_t bytes_ = 0;
};

// Of a call that found no space for it.
Error no_room(const std::string& path, uint64_t size_bytes);

}  // namespace embstore
