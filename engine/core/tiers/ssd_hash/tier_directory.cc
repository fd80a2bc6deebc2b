#include "tiers/ssd_hash/tier_directory.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "files/file.h"
#include "tiers/ssd_hash/file_header.h"
#include "tiers/ssd_hash/file_names.h"
#include "tiers/ssd_hash/whose_rows.h"

namespace embstore::ssd_hash {
namespace {

namespace fs = std::filesystem;

bool is_record_file(const std::string& name) { return number_in(name, kRecordFilePrefix).has_value(); }
bool is_unfinished_file(const std::string& name) { return is_unfinished(name, kRecordFilePrefix); }
bool is_of_checkpoint(const std::string& name) {
  return number_in(name, kCheckpointPrefix).has_value() || is_unfinished(name, kCheckpointPrefix);
}

// True of a file whose header never reached the medium: it is shorter, or nothing but zeros.
bool is_blank(files::FileCalls& calls, const std::string& path) {
  const files::File file(calls, path, O_RDONLY);
  std::array<std::byte, sizeof(FileHeader)> header{};
  file.read_at(header.data(), header.size(), 0);
  return file.size_bytes() < kHeaderBytes ||
         std::all_of(header.begin(), header.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// A header that was read as far as it reached the medium: where nobody relies on the file, it's allowed to be anything.
FileHeader header_or_rest(files::FileCalls& calls, const std::string& path) {
  const files::File file(calls, path, O_RDONLY);
  FileHeader header{};
  file.read_at(&header, sizeof header, 0);
  return header;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

[[noreturn]] void refuse_kept(const std::string& directory, const std::string& name) {
  refuse(directory, "holds rows that keep_files kept (" + name +
                        "): open it with keep_files and without durability, or remove the directory to start "
                        "without them");
}

[[noreturn]] void refuse_checkpoints(const std::string& directory, const std::string& name) {
  refuse(directory,
         "holds rows of checkpoints (" + name +
             "): open it with the durability that they were written with, or remove the directory to "
             "start without them");
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
    if (reason == EWOULDBLOCK) throw InUseError(path_);
    refuse(path_, "can't be locked: " + std::generic_category().message(reason));
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
    if (is_of_checkpoint(name)) {
      refuse_checkpoints(path_, name);
    } else if (is_unfinished_file(name)) {
      leftovers.push_back(path);
    } else if (is_record_file(name)) {
      // Where rows aren't kept, nothing is brought to the medium: a power cut may leave names alone.
      if (!keeps_rows && is_blank(calls_, path)) {
        leftovers.push_back(path);
        continue;
      }
      const FileHeader header = read_file_header(calls_, path);
      if (header.format_version == kCheckpointsVersion) refuse_checkpoints(path_, name);
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

TierDirectory::OfCheckpoints TierDirectory::find_checkpoints(const std::string& variable_name) const {
  OfCheckpoints found;
  std::error_code code;
  for (fs::directory_iterator at(path_, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    const std::string name = at->path().filename().string();
    if (is_of_checkpoint(name) || is_unfinished_file(name)) {
      found.paths.push_back(path);
      continue;
    }
    const auto number = number_in(name, kRecordFilePrefix);
    if (name == kNoteName) refuse_kept(path_, name);
    if (!number) continue;
    found.paths.push_back(path);
    found.last_file_number = std::max(found.last_file_number, *number);
    // Of files that no checkpoint needs nothing was brought to the medium: a power cut leaves what it likes.
    const FileHeader header = header_or_rest(calls_, path);
    if (std::memcmp(header.magic, kMagic, sizeof header.magic) != 0) continue;
    if (header.format_version > kCheckpointsVersion) {
      refuse(path, "has format version " + std::to_string(header.format_version) +
                       "; this engine reads versions up to " + std::to_string(kCheckpointsVersion));
    }
    if (header.checksum != checksum_of_header(header)) continue;
    check_variable(path, header.variable_hash, variable_name);
    if ((header.flags & kKept) != 0) refuse_kept(path_, name);
    found.most_records = std::max(found.most_records, header.record_capacity);
  }
  if (code) refuse(path_, "can't be listed: " + code.message());
  return found;
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
