// An error of the operating system on a file.
#pragma once

#include <string>

#include "errors/error.h"

namespace embstore::files {

class FileError : public Error {
 public:
  // The message is "PATH: WHAT: " and the system's text for `reason`, which is an errno.
  FileError(const std::string& path, const std::string& what, int reason);
  int reason() const { return reason_; }

 private:
  int reason_;
};

}  // namespace embstore::files
