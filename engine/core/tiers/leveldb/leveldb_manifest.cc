#include "tiers/leveldb/leveldb_manifest.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "files/file.h"
#include "platform/crc32c.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopyPrefix = "kept-";  // a name that LevelDB doesn't know, and leaves alone

std::string contents_of(const fs::path& path) {
  files::File file(files::system_file_calls(), path.string(), O_RDONLY);
  std::string bytes(file.size_bytes(), '\0');
  bytes.resize(file.read_at(bytes.data(), bytes.size(), 0));
  return bytes;
}

// Its name lasts, too.
void write_durably(const fs::path& path, std::string_view bytes) {
  files::File file(files::system_file_calls(), path.string(), O_RDWR | O_CREAT | O_TRUNC,
                   {.for_the_medium = true, .mode = 0644});
  file.write_at(bytes.data(), bytes.size(), 0);
  file.sync();
  files::sync_directory(files::system_file_calls(), path.parent_path().string());
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (files::system_file_calls().rename(from.c_str(), to.c_str()) != 0) {
    throw files::FileError(from.string(), "can't be renamed", errno);
  }
  files::sync_directory(files::system_file_calls(), to.parent_path().string());
}

void replace(const fs::path& path, std::string_view bytes) {
  const fs::path instead = path.parent_path() / (std::string(kCopyPrefix) + "shorter");
  write_durably(instead, bytes);
  rename_durably(instead, path);
}

struct Manifest {
  fs::path file;
  fs::path copy;
};

// That which CURRENT names.
std::optional<Manifest> manifest_of(const fs::path& directory) {
  std::string name = contents_of(directory / "CURRENT");
  if (!name.starts_with("MANIFEST-") || name.back() != '\n') return std::nullopt;
  name.pop_back();
  return Manifest{.file = directory / name, .copy = directory / (kCopyPrefix + name)};
}

// LevelDB's own lock of a database, while this is there. REQUIRES: this process doesn't have the database open.
class DatabaseLock {
 public:
  explicit DatabaseLock(const fs::path& directory)
      : descriptor_(::open((directory / "LOCK").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    struct flock all{};
    all.l_type = F_WRLCK;
    all.l_whence = SEEK_SET;
    is_held_ = descriptor_ >= 0 && ::fcntl(descriptor_, F_SETLK, &all) == 0;
  }
  ~DatabaseLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  DatabaseLock(const DatabaseLock&) = delete;
  DatabaseLock& operator=(const DatabaseLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  const int descriptor_;
  bool is_held_ = false;
};

// As LevelDB stores a record's checksum.
uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace

void keep_leveldb_manifest(const std::string& path) {
  const DatabaseLock lock(path);
  if (!lock.is_held()) return;  // LevelDB says who has it
  const std::optional<Manifest> is = manifest_of(path);
  if (!is) return;  // LevelDB says what's wrong
  std::error_code error;
  if (!fs::exists(is->file, error)) {
    if (!fs::exists(is->copy, error)) return;
    rename_durably(is->copy, is->file);
  }
  const std::string bytes = contents_of(is->file);
  const std::string_view whole = std::string_view(bytes).substr(0, extent_of_leveldb_log(bytes).whole_bytes);
  if (whole.empty()) return;
  if (whole.size() < bytes.size()) replace(is->file, whole);
  write_durably(is->copy, whole);
}

bool take_last_change_out_of_leveldb_manifest(const std::string& path) {
  const DatabaseLock lock(path);
  const std::optional<Manifest> is = manifest_of(path);
  if (!lock.is_held() || !is) return false;
  const std::string bytes = contents_of(is->file);
  const LevelDbLogExtent extent = extent_of_leveldb_log(bytes);
  if (extent.last_begins == 0) return false;
  replace(is->file, std::string_view(bytes).substr(0, extent.last_begins));
  return true;
}

void put_leveldb_manifest_back(const std::string& path) {
  const DatabaseLock lock(path);
  const std::optional<Manifest> is = manifest_of(path);
  if (lock.is_held() && is) replace(is->file, contents_of(is->copy));
}

void release_leveldb_manifest(const std::string& path) {
  files::sync_directory(files::system_file_calls(), path);
  std::vector<fs::path> copies;
  std::error_code error;
  for (fs::directory_iterator file(path, error), end; !error && file != end; file.increment(error)) {
    if (file->path().filename().string().starts_with(kCopyPrefix)) copies.push_back(file->path());
  }
  for (const fs::path& copy : copies) fs::remove(copy, error);  // what stays goes when it's opened next
}

LevelDbLogExtent extent_of_leveldb_log(std::string_view log) {
  constexpr size_t kBlock = 32768, kHeader = 7;
  enum Type : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
  LevelDbLogExtent whole{.whole_bytes = 0, .last_begins = 0};
  size_t begins = 0;
  bool inside = false;  // a record that has begun
  for (size_t at = 0;;) {
    if (const size_t left = kBlock - at % kBlock; left < kHeader) at += left;  // filled up with zeros
    if (at + kHeader > log.size()) return whole;
    uint32_t crc = 0;
    uint16_t length = 0;
    std::memcpy(&crc, log.data() + at, sizeof(crc));
    std::memcpy(&length, log.data() + at + sizeof(crc), sizeof(length));
    const auto type = static_cast<uint8_t>(log[at + kHeader - 1]);
    if (length > kBlock - at % kBlock - kHeader || at + kHeader + length > log.size()) return whole;
    if (crc != masked(crc32c(log.data() + at + kHeader - 1, size_t{1} + length))) return whole;
    const bool goes_on = type == kMiddle || type == kLast;
    if (type < kFull || type > kLast || goes_on != inside) return whole;
    if (!inside) begins = at;
    inside = type == kFirst || type == kMiddle;
    at += kHeader + length;
    if (!inside) whole = {.whole_bytes = at, .last_begins = begins};
  }
}

}  // namespace embstore
