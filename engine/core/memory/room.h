// Checks for room before it is taken: in memory, in tmpfs, and in control groups.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "errors/error.h"

namespace embstore {

// Throws Error(kStoreFull) if the file at `path`, which may exist already, would lie in memory and can't have
// `size_bytes`: the kernel lets a tmpfs promise memory that the computer doesn't have, and then kills
// processes. Other file systems are not checked: their calls report a lack of room.
void require_room_in_memory(const std::string& path, uint64_t size_bytes);

// Returns the bytes that the file at `path` takes in its file system: less than its length if parts of it
// were never written; 0 if there is no file.
uint64_t taken_bytes(const std::string& path);

// Returns the bytes that the process may take, by the computer's memory and by its control groups, without a
// process being killed for it; nothing if the system doesn't say.
std::optional<uint64_t> available_memory_bytes();

// Memory that its owner will take, but hasn't yet, so that other tiers don't count on it.
class MemoryReservation {
 public:
  MemoryReservation() = default;
  ~MemoryReservation() { process_total_ -= bytes_; }
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  void add(uint64_t bytes) {
    bytes_ += bytes;
    process_total_ += bytes;
  }
  static uint64_t process_total() { return process_total_; }

 private:
  static inline std::atomic<uint64_t> process_total_{0};
  uint64_t bytes_ = 0;
};

// The error for a call that found no space for the file.
Error no_room_error(const std::string& path, uint64_t size_bytes);

}  // namespace embstore
