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

// The computer's free memory; nothing if the system doesn't say.
struct MemoryLeft {
  std::optional<uint64_t> available_bytes;
  uint64_t swap_bytes = 0;
};
MemoryLeft memory_left() {
  std::ifstream meminfo("/proc/meminfo");
  MemoryLeft left;
  std::string word;
  while (meminfo >> word) {
    uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && meminfo >> kilobytes) left.available_bytes = kilobytes * 1024;
    if (word == "SwapFree:" && meminfo >> kilobytes) left.swap_bytes = kilobytes * 1024;
  }
  return left;
}

std::optional<uint64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  uint64_t number = 0;
  if (!(stream >> number)) return std::nullopt;  // such as "max"
  return number;
}

std::optional<uint64_t> smaller(std::optional<uint64_t> one, std::optional<uint64_t> other) {
  if (!one || !other) return one ? one : other;
  return std::min(*one, *other);
}

// Returns the least that control groups (of either version) leave the process: its own group and the groups
// around it. A container sees its own as the outermost. Nothing if there is no limit.
std::optional<uint64_t> group_bytes_left() {
  std::optional<uint64_t> least;
  std::ifstream groups("/proc/self/cgroup");  // lines of number:controllers:path
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_second_version = controllers.empty();
    if (!is_second_version && controllers.find("memory") == std::string::npos) continue;
    const std::string root = is_second_version ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string limit = is_second_version ? "/memory.max" : "/memory.limit_in_bytes";
    const std::string use = is_second_version ? "/memory.current" : "/memory.usage_in_bytes";
    std::string path = line.substr(second + 1);
    while (true) {
      if (path == "/") path.clear();
      const std::optional<uint64_t> most = number_in(root + path + limit);
      const std::optional<uint64_t> used = number_in(root + path + use);
      if (most && used) least = smaller(least, *most - std::min(*most, *used));
      if (path.empty()) break;
      path.resize(path.rfind('/'));
    }
  }
  return least;
}

Error no_room_error(const std::string& path, uint64_t size_bytes, const std::string& where,
                    uint64_t left_bytes) {
  return {ErrorKind::kStoreFull, "storage_path: " + path + " takes " + std::to_string(size_bytes) +
                                     " bytes, and " + where + " has " + std::to_string(left_bytes) +
                                     " left; give a storage_size that fits (without one a tier takes 1 GiB), "
                                     "or another storage_path"};
}

}  // namespace

uint64_t taken_bytes(const std::string& path) {
  struct stat file{};
  return stat(path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * 512 : 0;
}

void require_room_in_memory(const std::string& path, uint64_t size_bytes) {
  const std::optional<struct statfs> found = file_system_of(path);
  if (!found || (found->f_type != TMPFS_MAGIC && found->f_type != RAMFS_MAGIC)) return;
  const uint64_t wanted = size_bytes - std::min(size_bytes, taken_bytes(path));
  if (found->f_blocks != 0 && wanted > free_bytes(*found)) {  // 0: the file system has no limit
    throw no_room_error(path, size_bytes, "its file system in memory", free_bytes(*found));
  }
  const MemoryLeft left = memory_left();
  if (!left.available_bytes) return;
  const uint64_t available = *left.available_bytes + left.swap_bytes;  // a tmpfs may be swapped out, too
  if (wanted > available) {
    throw no_room_error(path, size_bytes, "the computer's memory, where it would lie,", available);
  }
}

std::optional<uint64_t> available_memory_bytes() {
  return smaller(memory_left().available_bytes, group_bytes_left());
}

Error no_room_error(const std::string& path, uint64_t size_bytes) {
  const std::optional<struct statfs> found = file_system_of(path);
  return no_room_error(path, size_bytes, "its file system", found ? free_bytes(*found) : 0);
}

}  // namespace embstore
