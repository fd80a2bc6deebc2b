#include "tiers/log/log_directory.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "errors/error.h"
#include "files/file.h"
#include "tiers/log/file_names.h"

namespace embstore::log {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStem = "rows-";
constexpr std::string_view kEnding = ".ssdhash";

// Returns whether a file has rows of an earlier version that weren't to outlive their process.
bool is_spill_of_earlier_version(const FileHeader& header) {
  constexpr size_t kFlagsAt = 52;
  uint32_t flags = 0;
  std::memcpy(&flags, reinterpret_cast<const char*>(&header) + kFlagsAt, sizeof flags);
  return std::memcmp(header.magic, "ESSSDHSH", sizeof header.magic) == 0 && flags == 0;
}

}  // namespace

std::string record_file_name(uint64_t number) { return numbered_name(kStem, number, kEnding); }

LogDirectory::LogDirectory(std::string path, files::FileCalls& calls)
    : path_(std::move(path)), calls_(calls) {
  std::error_code code;
  fs::create_directories(fs::absolute(path_).parent_path(), code);  // the lock lies in it
  if (!code) {
    lock_.emplace(path_);
    made_ = fs::create_directory(path_, code);
  }
  if (code) refuse(path_, "can't be created: " + code.message());
}

void LogDirectory::check_direct_io(int open_flags) const {
  const std::string scratch = path_ + "/" + record_file_name(0) + std::string(kUnfinished);
  struct Remove {
    files::FileCalls& calls;
    const std::string& file;
    ~Remove() { calls.unlink(file.c_str()); }  // the file exists even if opening it failed
  } const remove_scratch{calls_, scratch};
  files::File(calls_, scratch, open_flags | O_CREAT | O_TRUNC);
}

void LogDirectory::check_is_leftover(const std::string& path, const FileHeader& header,
                                     const TableIdentity& table, bool keeps_checkpoints) const {
  const HeaderKind kind = kind_of(header, kRowsMagic);
  const bool goes_with_process = header.uuid == Uuid{};
  if (kind == HeaderKind::kBlank || is_spill_of_earlier_version(header)) return;
  bool is_refused = kind == HeaderKind::kLater;
  if (keeps_checkpoints) {
    // A file that no checkpoint needs was never synced: a power cut leaves anything in it.
    is_refused =
        is_refused || (kind == HeaderKind::kOurs && !goes_with_process &&
                       std::string_view(header.table_name, header.table_name_bytes) != table.table_name);
  } else {
    is_refused = is_refused || kind == HeaderKind::kForeign;
  }
  if (is_refused) check_header(path, header, kRowsMagic, table);
  if (keeps_checkpoints || goes_with_process) return;
  refuse(path_, "holds rows that may belong to checkpoints (" + fs::path(path).filename().string() +
                    "): open it with the durability that they were written with, or remove the directory to "
                    "start without them");
}

LogDirectory::Leftovers LogDirectory::find(const TableIdentity& table, bool keeps_checkpoints) const {
  Leftovers found;
  std::map<std::string, FileHeader>
      headers;  // sorted by path, so that errors don't depend on the directory's order
  std::error_code code;
  for (fs::directory_iterator at(path_, code), end; !code && at != end; at.increment(code)) {
    const std::string path = at->path().string();
    if (path.ends_with(std::string(kEnding) + std::string(kUnfinished))) found.paths.push_back(path);
    if (path.ends_with(kEnding)) headers.emplace(path, read_header(calls_, path));
  }
  if (code) refuse(path_, "can't be listed: " + code.message());
  for (const auto& [path, header] : headers) {
    const bool is_earlier = kind_of(header, kRowsMagic) == HeaderKind::kEarlier;
    if (is_earlier && !is_spill_of_earlier_version(header)) refuse(path, kEarlierVersionRefusal);
  }
  for (const auto& [path, header] : headers) {
    const std::optional<uint64_t> number = number_in(fs::path(path).filename().string(), kStem, kEnding);
    if (!number) continue;
    check_is_leftover(path, header, table, keeps_checkpoints);
    found.paths.push_back(path);
    found.last_number = std::max(found.last_number, *number);
  }
  return found;
}

void LogDirectory::remove(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files::remove_file(calls_, path);
    made_ = true;  // created by the tier that left the file
  }
}

void LogDirectory::close() {
  if (made_) {
    std::error_code code;
    fs::remove(path_, code);  // it stays if other files are in it, or files were kept
  }
  lock_.reset();
}

}  // namespace embstore::log
