#include "tiers/leveldb/worthless_mark.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "files/file.h"

namespace embstore {
namespace {

namespace fs = std::filesystem;

std::string directory_around(const std::string& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).parent_path().string();
}

}  // namespace

bool WorthlessMark::is_there() const {
  std::error_code error;
  return fs::exists(fs::path(path_) / kName, error);
}

void WorthlessMark::put() const {
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) throw files::FileError(path_, "can't be made", error.value());
  const files::File mark(files::system_file_calls(), (fs::path(path_) / kName).string(), O_RDWR | O_CREAT,
                         {.mode = 0644});
  files::sync_directory(files::system_file_calls(), path_);
  files::sync_directory(files::system_file_calls(), directory_around(path_));
}

void WorthlessMark::remove() const {
  const std::string mark = (fs::path(path_) / kName).string();
  if (files::system_file_calls().unlink(mark.c_str()) != 0 && errno != ENOENT) {
    throw files::FileError(mark, "can't be removed", errno);
  }
  files::sync_directory(files::system_file_calls(), path_);
}

}  // namespace embstore
