#include "watch.h"

#include <algorithm>
#include <array>
#include <climits>
#include <sstream>

#include "system_calls.h"

namespace powercut {
namespace {

std::string absolute(int folder_descriptor, const std::string& path) {
  if (path.starts_with('/')) return path;
  std::string base;
  if (folder_descriptor == AT_FDCWD) {
    std::array<char, PATH_MAX> folder{};
    if (getcwd(folder.data(), folder.size()) == nullptr) return "";
    base = folder.data();
  } else {
    base = path_of(folder_descriptor);
  }
  return base.empty() ? "" : base + "/" + path;
}

std::string normal(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '/');) {
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    }
  }
  std::string joined;
  for (const std::string& part : parts) joined += "/" + part;
  return joined.empty() ? "/" : joined;
}

bool is_normal(const std::string& path) {
  return path.find("/.") == std::string::npos && path.find("//") == std::string::npos && !path.ends_with('/');
}

}  // namespace

std::string path_of(int descriptor) {
  std::array<char, PATH_MAX> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  return length <= 0 ? "" : std::string(path.data(), static_cast<size_t>(length));
}

Watch::Watch(std::vector<std::string> roots) : roots_(std::move(roots)) {
  for (const std::string& root : roots_) {
    struct stat status{};
    if (stat(root.c_str(), &status) != 0) continue;
    if (std::find(devices_.begin(), devices_.end(), status.st_dev) == devices_.end()) {
      devices_.push_back(status.st_dev);
    }
  }
}

uint64_t Watch::identity(const struct stat& status) const {
  const auto device = std::find(devices_.begin(), devices_.end(), status.st_dev) - devices_.begin();
  constexpr unsigned kInodeBits = 56;
  return status.st_ino + (static_cast<uint64_t>(device) << kInodeBits);
}

std::optional<size_t> Watch::root_of(const std::string& path) const {
  for (size_t root = 0; root < roots_.size(); ++root) {
    const std::string& prefix = roots_[root];
    if (path.starts_with(prefix) && (path.size() == prefix.size() || path[prefix.size()] == '/')) return root;
  }
  return std::nullopt;
}

std::optional<Place> Watch::find(int folder_descriptor, const char* path) const {
  if (path == nullptr || roots_.empty()) return std::nullopt;
  std::string whole = absolute(folder_descriptor, path);
  if (!is_normal(whole)) whole = normal(whole);
  const auto root = root_of(whole);
  if (!root || whole.size() == roots_[*root].size()) return std::nullopt;  // the root itself can't be changed
  const size_t slash = whole.rfind('/');
  Place place{*root, whole, whole.substr(0, slash), whole.substr(slash + 1), 0};
  struct stat status{};
  if (stat(place.folder.c_str(), &status) != 0) return std::nullopt;  // the call itself will fail
  place.folder_id = identity(status);
  return place;
}

}  // namespace powercut
