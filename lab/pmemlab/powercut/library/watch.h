// Which paths are followed: those under the given folders.
#pragma once

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
  uint64_t folder_inode;
};

class Watch {
 public:
  explicit Watch(std::vector<std::string> roots) : roots_(std::move(roots)) {}

  // Symbolic links on the way are not followed, but for what the working folder's path is.
  std::optional<Place> find(int folder_descriptor, const char* path) const;
  // The root that a path is in or is.
  std::optional<size_t> root_of(const std::string& path) const;
  // Where a file is kept that the medium may still have while the program has removed it: beside its root.
  std::string kept_path(size_t root, uint64_t inode) const {
    return roots_[root] + ".kept/" + std::to_string(inode);
  }

 private:
  std::vector<std::string> roots_;
};

// The path of what is open; empty where it has none.
std::string path_of(int descriptor);

}  // namespace powercut
