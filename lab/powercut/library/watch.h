// Finds the followed paths, which are those under the given folders.
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

  // Returns a number for a file or folder, unique among those of all roots. It is the inode if all are on one
  // file system.
  uint64_t identity(const struct stat& status) const;

  // Symbolic links in the path are not followed, except in the path of the working folder.
  std::optional<Place> find(int folder_descriptor, const char* path) const;
  // Returns the root that a path is, or is in.
  std::optional<size_t> root_of(const std::string& path) const;
  // Returns where a file is kept that the program has removed and the medium may have: beside its root.
  std::string kept_path(size_t root, uint64_t id) const {
    return roots_[root] + ".kept/" + std::to_string(id);
  }

 private:
  std::vector<std::string> roots_;
  std::vector<dev_t> devices_;  // of the roots, each once
};

// Returns the path of an open file; empty if it has none.
std::string path_of(int descriptor);

}  // namespace powercut
