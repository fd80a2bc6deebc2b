#include "tiers/medium/testing/power_medium.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "testing/check.h"
#include "testing/files.h"
#include "tiers/medium/testing/pmem_medium.h"

namespace embstore::medium::testing {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPageBytes = 4096;

struct stat status_of(int descriptor) {
  struct stat status{};
  check(fstat(descriptor, &status) == 0, "a file can't be looked at");
  return status;
}

std::string contents_of(int descriptor) {
  std::string bytes(static_cast<size_t>(status_of(descriptor).st_size), '\0');
  check(::pread(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
        "a file can't be read");
  return bytes;
}

Sync kind_of(const std::string& path) {
  if (path.find("/manifests/") != std::string::npos) return Sync::kManifest;
  return path.ends_with(".new") ? Sync::kRecordsWrittenAnew : Sync::kRecords;
}

}  // namespace

PowerMedium::PowerMedium(std::string root, uint64_t seed)
    : root_(std::move(root)), rows_(root_ + "/rows"), manifests_(root_ + "/manifests"), random_(seed) {
  const MutexLock lock(mutex_);
  rows_is_durable_ = fs::exists(rows_);
  for (const std::string& directory : {rows_, manifests_}) {
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(directory, missing)) {
      const int descriptor = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      check(descriptor >= 0, "a file can't be opened");
      Node& node = node_of(descriptor, entry.path().string());
      node.durable = current(node);
      names_[entry.path().string()] = {status_of(descriptor).st_ino};
      ::close(descriptor);
    }
  }
}

PowerMedium::~PowerMedium() {
  for (const auto& [number, node] : nodes_) ::close(node.descriptor);
}

bool PowerMedium::is_ours(const std::string& path) const {
  const std::string directory = fs::path(path).parent_path().string();
  return directory == rows_ || directory == manifests_;
}

void PowerMedium::announce() {
  if (!before_call_ || std::exchange(is_calling_, true)) return;
  before_call_();
  is_calling_ = false;
}

PowerMedium::Node& PowerMedium::node_of(int descriptor, const std::string& path) {
  const ino_t number = status_of(descriptor).st_ino;
  auto found = nodes_.find(number);
  if (found == nodes_.end()) {
    const int ours = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    check(ours >= 0, "there are too many files");
    found = nodes_.emplace(number, Node{ours, path, {}}).first;
  }
  if (!path.empty()) found->second.path = path;
  return found->second;
}

std::string PowerMedium::current(const Node& node) const { return contents_of(node.descriptor); }

void PowerMedium::name(const std::string& path, ino_t node) {
  std::vector<ino_t>& may_be = names_[path];
  if (may_be.empty()) may_be.push_back(kNothing);
  if (may_be.back() != node) may_be.push_back(node);
}

int PowerMedium::open(const char* path, int flags, mode_t mode) {
  const int descriptor = FileCalls::open(path, flags, mode);
  if (descriptor < 0 || !is_ours(path)) return descriptor;
  const MutexLock lock(mutex_);
  node_of(descriptor, path);
  name(path, status_of(descriptor).st_ino);
  return descriptor;
}

ssize_t PowerMedium::pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  announce();
  const ssize_t written = FileCalls::pwrite(descriptor, data, bytes, offset);
  if (written <= 0) return written;
  // The system may write some pages back at any time.
  const MutexLock lock(mutex_);
  Node& node = node_of(descriptor, {});
  const std::string now = current(node);
  const auto first = static_cast<size_t>(offset);
  for (size_t page = first / kPageBytes * kPageBytes; page < first + static_cast<size_t>(written);
       page += kPageBytes) {
    if (below(4) != 0) continue;
    const size_t count = std::min(kPageBytes, now.size() - page);
    if (node.durable.size() < page + count) node.durable.resize(page + count);
    now.copy(node.durable.data() + page, count, page);
  }
  return written;
}

int PowerMedium::fdatasync(int descriptor) {
  announce();
  const MutexLock lock(mutex_);
  Node& node = node_of(descriptor, {});
  if (fails()) {
    node.forgets = true;
    return -1;
  }
  if (!node.forgets && kind_of(node.path) != left_out_) node.durable = current(node);
  return 0;
}

bool PowerMedium::fails() {
  if (syncs_until_failure_ < 0 || syncs_until_failure_-- > 0) return false;
  errno = EIO;
  return true;
}

int PowerMedium::fsync(int descriptor) {
  announce();
  const MutexLock lock(mutex_);
  if (fails()) return -1;
  const ino_t synced = status_of(descriptor).st_ino;
  const auto is = [synced](const std::string& directory) {
    struct stat status{};
    return stat(directory.c_str(), &status) == 0 && status.st_ino == synced;
  };
  if (is(rows_)) {
    if (left_out_ != Sync::kDirectory) settle_names(rows_);
  } else if (is(manifests_)) {
    const Sync kind = manifest_was_named_ ? Sync::kManifestNamed : Sync::kManifestRemoved;
    if (left_out_ != kind) settle_names(manifests_);
  } else {
    check(is(root_), "another directory is synced");
    if (left_out_ != Sync::kParentDirectory) rows_is_durable_ = true;
  }
  return 0;
}

void PowerMedium::settle_names(const std::string& directory) {
  for (auto& [path, may_be] : names_) {
    if (fs::path(path).parent_path() == directory) may_be.erase(may_be.begin(), may_be.end() - 1);
  }
  std::set<ino_t> is_named;
  for (const auto& [path, may_be] : names_) is_named.insert(may_be.begin(), may_be.end());
  std::erase_if(names_, [](const auto& entry) { return entry.second == std::vector<ino_t>{kNothing}; });
  std::erase_if(nodes_, [&](const auto& entry) {
    if (is_named.contains(entry.first)) return false;
    ::close(entry.second.descriptor);
    return true;
  });
}

int PowerMedium::unlink(const char* path) {
  announce();
  const int result = FileCalls::unlink(path);
  const MutexLock lock(mutex_);
  if (result != 0) return result;
  name(path, kNothing);
  if (kind_of(path) == Sync::kManifest) manifest_was_named_ = false;
  return result;
}

int PowerMedium::rename(const char* from, const char* to) {
  announce();
  const int result = FileCalls::rename(from, to);
  if (result != 0) return result;
  const MutexLock lock(mutex_);
  const ino_t node = names_.at(from).back();
  name(to, node);
  name(from, kNothing);
  nodes_.at(node).path = to;
  if (kind_of(to) == Sync::kManifest) manifest_was_named_ = true;
  return result;
}

std::string PowerMedium::left_of(const Node& node, uint64_t percent) {
  const std::string now = current(node);
  std::string left = node.durable;
  if (now.size() > left.size() && below(100) < percent) {
    left.resize(below(2) == 0 ? now.size() : left.size() + below(now.size() - left.size()));
  }
  for (size_t page = 0; page < left.size(); page += kPageBytes) {
    const size_t count = std::min({kPageBytes, left.size() - page, now.size() - std::min(page, now.size())});
    if (left.compare(page, count, now, std::min(page, now.size()), count) == 0) continue;
    const bool is_torn = below(8) == 0;
    if (!is_torn && below(100) >= percent) continue;
    for (size_t at = page; at < page + count; at += kWordBytes) {
      if (is_torn && below(100) >= percent) continue;
      now.copy(left.data() + at, std::min(kWordBytes, page + count - at), at);
    }
  }
  return left;
}

void PowerMedium::cut(const std::string& to) {
  fs::remove_all(to);
  const MutexLock lock(mutex_);
  // Anything from hardly any bytes to nearly all may survive.
  const uint64_t percent = below(101);
  fs::create_directories(to + "/manifests");
  const bool has_rows = rows_is_durable_ || (fs::exists(rows_) && below(2) == 0);
  if (has_rows) fs::create_directories(to + "/rows");
  for (const auto& [path, may_be] : names_) {
    const std::string directory = fs::path(path).parent_path().string();
    if (directory == rows_ && !has_rows) continue;
    const ino_t node = below(100) < percent ? may_be.back() : may_be[below(may_be.size())];
    if (node == kNothing) continue;
    put_file(to + path.substr(root_.size()), left_of(nodes_.at(node), percent));
  }
}

}  // namespace embstore::medium::testing
