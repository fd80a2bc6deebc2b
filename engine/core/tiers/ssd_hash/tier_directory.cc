#include "tiers/ssd_hash/tier_directory.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "files/file.h"
#include "tiers/ssd_hash/file_header.h"

namespace embstore::ssd_hash {
namespace {

namespace fs = std::filesystem;

bool is_record_file(const std::string& name) {
  constexpr std::string_view kPrefix = "rows-";
  constexpr std::string_view kSuffix = ".ssdhash";
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_unfinished_file(const std::string& name) {
  constexpr std::string_view kSuffix = ".new";
  return name.ends_with(kSuffix) && is_record_file(name.substr(0, name.size() - kSuffix.size()));
}

// True of a file whose header never reached the medium: it is shorter, or nothing but zeros.
bool is_blank(files::FileCalls& calls, const std::string& path) {
  const files::File file(calls, path, O_RDONLY);
  std::array<std::byte, sizeof(FileHeader)> header{};
  file.read_at(header.data(), header.size(), 0);
  return file.size_bytes() < kHeaderBytes ||
         std::all_of(header.begin(), header.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

}  // namespace

TierDirectory::TierDirectory(std::string path, files::FileCalls& calls)
    : path_(std::move(path)), calls_(calls) {
  std::error_code code;
  made_ = fs::create_directories(path_, code);
  if (code) refuse(path_, "can't be created: " + code.message());
  descriptor_ = calls_.open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (descriptor_ < 0) {
    const int reason = errno;
    throw files::FileError(path_, "can't be opened", reason);
  }
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    unlock();
    refuse(path_, reason == EWOULDBLOCK
                      ? "is in use by another variable; give each its own name or storage_path"
                      : "can't be locked: " + std::generic_category().message(reason));
  }
}

TierDirectory::~TierDirectory() { unlock(); }

void TierDirectory::unlock() {
  if (descriptor_ < 0) return;
  flock(descriptor_, LOCK_UN);  // which a forked child's copy of the descriptor would hold on to
  calls_.close(std::exchange(descriptor_, -1));
}

// A file that a kill leaves has no rows by its name.
void TierDirectory::check_direct_io(const std::string& scratch_path, int open_flags) const {
  struct Remove {
    files::FileCalls& calls;
    const std::string& file;
    ~Remove() { calls.unlink(file.c_str()); }  // there even where it can't be opened
  } const remove_scratch{calls_, scratch_path};
  files::File(calls_, scratch_path, open_flags | O_CREAT | O_TRUNC);
}

std::vector<OldFile> TierDirectory::list(std::vector<std::string>& leftovers) const {
  std::vector<OldFile> kept;
  std::error_code code;
  const bool keeps_rows = fs::exists(fs::path(path_) / kNoteName, code);
  for (fs::directory_iterator at(path_, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    const std::string name = at->path().filename().string();
    if (is_unfinished_file(name)) {
      leftovers.push_back(path);
    } else if (is_record_file(name)) {
      // Where rows aren't kept, nothing is brought to the medium: a power cut may leave names alone.
      if (!keeps_rows && is_blank(calls_, path)) {
        leftovers.push_back(path);
        continue;
      }
      const FileHeader header = read_file_header(calls_, path);
      if ((header.flags & kKept) == 0) {
        leftovers.push_back(path);
      } else {
        kept.push_back({path, header});
      }
    }
  }
  if (code) refuse(path_, "can't be listed: " + code.message());
  std::sort(kept.begin(), kept.end(),
            [](const OldFile& a, const OldFile& b) { return a.header.file_number < b.header.file_number; });
  return kept;
}

void TierDirectory::remove(const std::vector<std::string>& leftovers) {
  for (const std::string& path : leftovers) {
    if (calls_.unlink(path.c_str()) != 0) {
      const int reason = errno;
      throw files::FileError(path, "can't be removed", reason);
    }
    made_ = true;  // by the tier that left the file
  }
}

void TierDirectory::close(bool keep) {
  if (made_ && !keep) {
    std::error_code code;
    fs::remove(path_, code);  // stays if others put something there
  }
  unlock();
}

}  // namespace embstore::ssd_hash
