#include "memory/room.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace embstore {
namespace {

std::optional<struct statfs> file_system_of(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  struct statfs found{};
  if (statfs(directory.empty() ? "." : directory.c_str(), &found) != 0) return std::nullopt;
  return found;
}

uint64_t free_bytes(const struct statfs& file_system) {
  return static_cast<uint64_t>(file_system.f_bavail) * static_cast<uint64_t>(file_system.f_bsize);
}

uint64_t taken_bytes(const std::string& path) {
  struct stat file{};
  return stat(path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * 512 : 0;
}

// What can be had without ending a process: a tmpfs may be swapped out, too.
std::optional<uint64_t> available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::optional<uint64_t> available;
  uint64_t swap = 0;
  std::string word;
  while (meminfo >> word) {
    uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && meminfo >> kilobytes) available = kilobytes * 1024;
    if (word == "SwapFree:" && meminfo >> kilobytes) swap = kilobytes * 1024;
  }
  if (available) *available += swap;
  return available;
}

Error no_room(const std::string& path, uint64_t size_bytes, const std::string& where, uint64_t left_bytes) {
  return {ErrorKind::kStoreFull, "storage_path: " + path + " takes " + std::to_string(size_bytes) +
                                     " bytes, and " + where + " has " + std::to_string(left_bytes) +
                                     " left; give a storage_size that fits (without one a tier takes 1 GiB), "
                                     "or another storage_path"};
}

}  // namespace

void require_room_in_memory(const std::string& path, uint64_t size_bytes) {
  const std::optional<struct statfs> found = file_system_of(path);
  if (!found || (found->f_type != TMPFS_MAGIC && found->f_type != RAMFS_MAGIC)) return;
  const uint64_t wanted = size_bytes - std::min(size_bytes, taken_bytes(path));
  if (found->f_blocks != 0 && wanted > free_bytes(*found)) {  // 0: it has no limit
    throw no_room(path, size_bytes, "its file system in memory", free_bytes(*found));
  }
  const std::optional<uint64_t> available = available_memory_bytes();
  if (available && wanted > *available) {
    throw no_room(path, size_bytes, "the computer's memory, where it would lie,", *available);
  }
}

Error no_room(const std::string& path, uint64_t size_bytes) {
  const std::optional<struct statfs> found = file_system_of(path);
  return no_room(path, size_bytes, "its file system", found ? free_bytes(*found) : 0);
}

}  // namespace embstore
