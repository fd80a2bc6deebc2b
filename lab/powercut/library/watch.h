// Which paths are followed: those under the given folders.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace powercut {

struct Place {
  size_t root;
  std::string path;  // absolute
  std::string folder;
  std::string name;
  uint64_t folder_id;
};

class Watch {
 public:
  explicit Watch(std::vector<std::string> roots);

  // A number for a file or folder, which is its own among those of all roots. Its inode where all are on one
  // file system.
  uint64_t identity(const struct stat& status) const;

  // Symbolic links on the way are not followed, but for what the working folder's path is.
  std::optional<Place> find(int folder_descriptor, const char* path) const;
  // The root that a path is in or is.
  std::optional<size_t> root_of(const std::string& path) const;
  // Where a file is kept that the medium may still have while the program has removed it: beside its root.
  std::string kept_path(size_t root, uint64_t id) const {
    return roots_[root] + ".kept/" + std::to_string(id);
  }

 private:
  std::vector<std::string> roots_;
  std::vector<dev_t> devices_;  // of the roots, each once
};

// The path of what is open; empty where it has none.
std::string path_of(int descriptor);

}  // namespace powercut
